// Embed texts with ONNX Runtime in C++, from a folder of `qdqbert export --to onnx-text`.
//
//     g++ -std=c++17 embed.cpp -I ORT/include -L ORT/lib -lonnxruntime -o embed
//     ./embed my-embedder-int8-onnx-text/model.onnx ./libortextensions.so "A fine film." "A dull one."
//
// ORT is a release of ONNX Runtime, and libortextensions.so is built from onnxruntime-extensions.
// Prints the dot product of the first text's embedding with that of each text: their cosine, if the
// model normalizes. Paths are `char` here; Windows has `wchar_t`.

#include <onnxruntime_cxx_api.h>

#include <cstdint>
#include <exception>
#include <iostream>
#include <vector>

int embed(const char* model, const char* extensions, const std::vector<const char*>& texts) {
  Ort::Env env(ORT_LOGGING_LEVEL_WARNING, "embed");
  env.DisableTelemetryEvents();
  Ort::SessionOptions options;
  // The operators stay loaded until the process ends.
  void* library = nullptr;
  Ort::ThrowOnError(Ort::GetApi().RegisterCustomOpsLibrary(options, extensions, &library));
  Ort::Session session(env, model, options);

  // The input: strings of shape (batch).
  Ort::AllocatorWithDefaultOptions allocator;
  const int64_t batch = static_cast<int64_t>(texts.size());
  Ort::Value text = Ort::Value::CreateTensor(allocator, &batch, 1, ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING);
  text.FillStringTensor(texts.data(), texts.size());

  // The output: float32 of shape (batch, dimensions), pooled and normalized as the model says.
  const char* inputs[] = {"text"};
  const char* outputs[] = {"sentence_embedding"};
  const std::vector<Ort::Value> results =
      session.Run(Ort::RunOptions{nullptr}, inputs, &text, 1, outputs, 1);
  const std::vector<int64_t> shape = results[0].GetTensorTypeAndShapeInfo().GetShape();
  const float* values = results[0].GetTensorData<float>();

  for (int64_t row = 0; row < shape[0]; ++row) {
    double product = 0;
    for (int64_t i = 0; i < shape[1]; ++i) product += values[i] * values[row * shape[1] + i];
    std::cout << product << "  " << texts[row] << "\n";
  }
  return 0;
}

int main(int count, char** words) {
  if (count < 4) {
    std::cerr << "usage: embed MODEL.onnx EXTENSIONS.so TEXT...\n";
    return 2;
  }
  try {
    return embed(words[1], words[2], std::vector<const char*>(words + 3, words + count));
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
