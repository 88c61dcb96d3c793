// Compare texts over HTTP with `qdqbert serve`, with Go's standard library alone.
//
//	qdqbert serve ./my-embedder-int8
//	go run similarity.go http://localhost:8000 "A fine film." "A good movie." "A wet road."
//
// Prints the cosine of the first text and each other one. If the server has a key, it is the
// environment variable QDQBERT_API_KEY.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"
)

func similarity(url, text string, others []string) ([]float32, error) {
	inputs := map[string]any{"source_sentence": text, "sentences": others}
	body, err := json.Marshal(map[string]any{"inputs": inputs})
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequest("POST", url+"/similarity", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	if key := os.Getenv("QDQBERT_API_KEY"); key != "" {
		request.Header.Set("Authorization", "Bearer "+key)
	}
	client := http.Client{Timeout: time.Minute}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", response.Status, answer)
	}
	var found []float32
	return found, json.Unmarshal(answer, &found)
}

func main() {
	if len(os.Args) < 4 {
		fmt.Fprintln(os.Stderr, "usage: similarity URL TEXT TEXT...")
		os.Exit(2)
	}
	found, err := similarity(os.Args[1], os.Args[2], os.Args[3:])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for index, each := range found {
		fmt.Printf("%.4f  %s\n", each, os.Args[3+index])
	}
}
