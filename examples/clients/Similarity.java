// Compare texts over HTTP with `qdqbert serve`, with Java's standard library alone (11 or newer).
//
//     qdqbert serve ./my-embedder-int8
//     java Similarity.java http://localhost:8000 "A fine film." "A good movie." "A wet road."
//
// Prints the cosine of the first text and each other one. If the server has a key, it is the
// environment variable QDQBERT_API_KEY.

import java.io.IOException;
import java.io.PrintStream;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.stream.Collectors;

public class Similarity {
    /** Write a text as JSON. A library does this in a larger program. */
    static String quoted(String text) {
        StringBuilder made = new StringBuilder("\"");
        for (char letter : text.toCharArray()) {
            if (letter == '"' || letter == '\\') {
                made.append('\\').append(letter);
            } else if (letter < ' ') {
                made.append(String.format("\\u%04x", (int) letter));
            } else {
                made.append(letter);
            }
        }
        return made.append('"').toString();
    }

    static double[] similarity(String url, String text, List<String> others)
            throws IOException, InterruptedException {
        String sentences = others.stream().map(Similarity::quoted).collect(Collectors.joining(","));
        String body = "{\"inputs\": {\"source_sentence\": " + quoted(text) + ", \"sentences\": [" + sentences + "]}}";
        HttpRequest.Builder request = HttpRequest.newBuilder(URI.create(url + "/similarity"))
                .timeout(Duration.ofMinutes(1))
                .header("Content-Type", "application/json")
                .POST(HttpRequest.BodyPublishers.ofString(body, StandardCharsets.UTF_8));
        String key = System.getenv("QDQBERT_API_KEY");
        if (key != null && !key.isEmpty()) {
            request.header("Authorization", "Bearer " + key);
        }
        HttpResponse<String> response =
                HttpClient.newHttpClient().send(request.build(), HttpResponse.BodyHandlers.ofString());
        if (response.statusCode() != 200) {
            throw new IOException(response.statusCode() + ": " + response.body());
        }
        // The answer is a list of numbers.
        String numbers = response.body().replaceAll("[\\[\\]\\s]", "");
        return Arrays.stream(numbers.split(",")).mapToDouble(Double::parseDouble).toArray();
    }

    public static void main(String[] words) throws InterruptedException {
        if (words.length < 3) {
            System.err.println("usage: Similarity URL TEXT TEXT...");
            System.exit(2);
        }
        List<String> others = Arrays.asList(words).subList(2, words.length);
        PrintStream output = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        try {
            double[] found = similarity(words[0], words[1], others);
            for (int index = 0; index < found.length; index++) {
                output.printf(Locale.ROOT, "%.4f  %s%n", found[index], others.get(index));
            }
        } catch (IOException error) {
            System.err.println(error);
            System.exit(1);
        }
    }
}
