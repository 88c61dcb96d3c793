// Embed texts with the modules `onnxruntime_go` and `tokenizer` in Go, from a folder of
// `qdqbert quantize`.
//
//	go mod init embed
//	go get github.com/yalue/onnxruntime_go github.com/sugarme/tokenizer
//	go run embed.go libonnxruntime.so ./my-embedder-int8 model.onnx "A fine film." "A dull one."
//
// Prints the dot product of the first text's embedding with that of each text: their cosine, if the
// model normalizes. The library is in ONNX Runtime's releases. The graph is FOLDER/model.onnx, or
// FOLDER/onnxruntime/model.onnx if the folder has several.
package main

import (
	"encoding/json"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/sugarme/tokenizer"
	"github.com/sugarme/tokenizer/pretrained"
	ort "github.com/yalue/onnxruntime_go"
)

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func read(path string, into any) {
	content, err := os.ReadFile(path)
	check(err)
	check(json.Unmarshal(content, into))
}

// input makes a tensor, int64 of shape (batch, tokens).
func input(rows []tokenizer.Encoding, values func(tokenizer.Encoding) []int) ort.Value {
	var flat []int64
	for _, row := range rows {
		for _, value := range values(row) {
			flat = append(flat, int64(value))
		}
	}
	shape := ort.NewShape(int64(len(rows)), int64(len(flat)/len(rows)))
	tensor, err := ort.NewTensor(shape, flat)
	check(err)
	return tensor
}

func main() {
	if len(os.Args) < 5 {
		log.Fatal("usage: embed LIBRARY FOLDER GRAPH TEXT...")
	}
	folder, texts := os.Args[2], os.Args[4:]
	var settings struct {
		MaxLength int `json:"max_length"`
		Inputs    []string
	}
	read(filepath.Join(folder, "quantization.json"), &settings)
	var config struct {
		PadTokenId int `json:"pad_token_id"`
	}
	read(filepath.Join(folder, "config.json"), &config)

	encoder, err := pretrained.FromFile(filepath.Join(folder, "tokenizer.json"))
	check(err)
	encoder.WithTruncation(&tokenizer.TruncationParams{MaxLength: settings.MaxLength})
	encoder.WithPadding(&tokenizer.PaddingParams{
		Strategy:  *tokenizer.NewPaddingStrategy(),
		Direction: tokenizer.Right,
		PadId:     config.PadTokenId,
	})
	var sequences []tokenizer.EncodeInput
	for _, text := range texts {
		sequences = append(sequences, tokenizer.NewSingleEncodeInput(tokenizer.NewInputSequence(text)))
	}
	rows, err := encoder.EncodeBatch(sequences, true)
	check(err)

	ort.SetSharedLibraryPath(os.Args[1])
	check(ort.InitializeEnvironment())
	defer ort.DestroyEnvironment()
	values := map[string]func(tokenizer.Encoding) []int{
		"input_ids":      func(row tokenizer.Encoding) []int { return row.Ids },
		"attention_mask": func(row tokenizer.Encoding) []int { return row.AttentionMask },
		// RoBERTa and others have none.
		"token_type_ids": func(row tokenizer.Encoding) []int { return row.TypeIds },
	}
	var inputs []ort.Value
	for _, name := range settings.Inputs {
		inputs = append(inputs, input(rows, values[name]))
	}
	session, err := ort.NewDynamicAdvancedSession(
		filepath.Join(folder, os.Args[3]), settings.Inputs, []string{"sentence_embedding"}, nil)
	check(err)
	defer session.Destroy()
	outputs := []ort.Value{nil}
	check(session.Run(inputs, outputs))
	// float32 of shape (batch, dimensions), pooled and normalized as the model says.
	embeddings := outputs[0].(*ort.Tensor[float32]).GetData()
	size := len(embeddings) / len(texts)
	for index, text := range texts {
		var product float32
		for dimension := 0; dimension < size; dimension++ {
			product += embeddings[dimension] * embeddings[index*size+dimension]
		}
		fmt.Printf("%.4f  %s\n", product, text)
	}
}
