// Embed texts with ONNX Runtime in Java, from a folder of `qdqbert export --to onnx-text`.
//
// Dependencies, of the group com.microsoft.onnxruntime: onnxruntime 1.20 or later, and
// onnxruntime-extensions 0.13 or later.
//
//     java -cp 'lib/*' Embed.java ./my-embedder-int8-onnx-text/model.onnx "A fine film." "A dull one."
//
// Prints the dot product of the first text's embedding with that of each text: their cosine, if the
// model normalizes.

import ai.onnxruntime.OnnxTensor;
import ai.onnxruntime.OrtEnvironment;
import ai.onnxruntime.OrtException;
import ai.onnxruntime.OrtSession;
import ai.onnxruntime.extensions.OrtxPackage;
import java.util.Arrays;
import java.util.Map;

public final class Embed {
  public static void main(String[] words) throws OrtException {
    if (words.length < 2) {
      throw new IllegalArgumentException("usage: Embed MODEL.onnx TEXT...");
    }
    String[] texts = Arrays.copyOfRange(words, 1, words.length);
    OrtEnvironment environment = OrtEnvironment.getEnvironment();
    try (OrtSession.SessionOptions options = new OrtSession.SessionOptions()) {
      options.registerCustomOpLibrary(OrtxPackage.getLibraryPath());
      try (OrtSession session = environment.createSession(words[0], options);
          // The input: strings of shape (batch).
          OnnxTensor text = OnnxTensor.createTensor(environment, texts);
          OrtSession.Result result = session.run(Map.of("text", text))) {
        // The output: float32 of shape (batch, dimensions), pooled and normalized as the model says.
        float[][] vectors = (float[][]) result.get("sentence_embedding").orElseThrow().getValue();
        for (int row = 0; row < vectors.length; row++) {
          double product = 0;
          for (int i = 0; i < vectors[row].length; i++) {
            product += vectors[0][i] * vectors[row][i];
          }
          System.out.printf("%.4f  %s%n", product, texts[row]);
        }
      }
    }
  }

  private Embed() {}
}
