// Embed texts with the crates `ort` and `tokenizers` in Rust, from a folder of `qdqbert quantize`.
//
// Cargo.toml:
//
//     [dependencies]
//     ort = "=2.0.0-rc.12"
//     serde_json = "1"
//     tokenizers = "0.22"
//
//     cargo run --release -- ./my-embedder-int8 model.onnx "A fine film." "A dull one."
//
// Prints the dot product of the first text's embedding with that of each text: their cosine, if the
// model normalizes. The graph is FOLDER/model.onnx, or FOLDER/onnxruntime/model.onnx if the folder
// has several.

use ort::{session::Session, value::Tensor};
use tokenizers::{Encoding, PaddingParams, Tokenizer, TruncationParams};

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn input(rows: &[Encoding], values: fn(&Encoding) -> &[u32]) -> Result<Tensor<i64>, Failure> {
    // Inputs are int64 of shape (batch, tokens).
    let shape = [rows.len(), values(&rows[0]).len()];
    let flat: Vec<i64> = rows
        .iter()
        .flat_map(|row| values(row).iter().map(|&value| i64::from(value)))
        .collect();
    Ok(Tensor::from_array((shape, flat))?)
}

fn main() -> Result<(), Failure> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [folder, graph, _, ..] = words.as_slice() else {
        return Err("usage: embed FOLDER GRAPH TEXT...".into());
    };
    let texts = &words[2..];
    let settings: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(format!(
        "{folder}/quantization.json"
    ))?)?;
    let max_length = settings["max_length"].as_u64().ok_or("no max_length")? as usize;
    let config: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(format!("{folder}/config.json"))?)?;

    let mut tokenizer = Tokenizer::from_file(format!("{folder}/tokenizer.json"))?;
    tokenizer.with_truncation(Some(TruncationParams {
        max_length,
        ..Default::default()
    }))?;
    tokenizer.with_padding(Some(PaddingParams {
        pad_id: config["pad_token_id"].as_u64().unwrap_or(0) as u32,
        ..Default::default()
    }));
    let rows = tokenizer.encode_batch(texts.to_vec(), true)?;

    let mut session = Session::builder()?.commit_from_file(format!("{folder}/{graph}"))?;
    let mut inputs = vec![
        ("input_ids", input(&rows, Encoding::get_ids)?),
        (
            "attention_mask",
            input(&rows, Encoding::get_attention_mask)?,
        ),
    ];
    // RoBERTa and others have no segments.
    let names = settings["inputs"].as_array().ok_or("no inputs")?;
    if names.iter().any(|name| name == "token_type_ids") {
        inputs.push(("token_type_ids", input(&rows, Encoding::get_type_ids)?));
    }
    let outputs = session.run(inputs)?;
    // float32 of shape (batch, dimensions), pooled and normalized as the model says.
    let (shape, values) = outputs["sentence_embedding"].try_extract_tensor::<f32>()?;
    let size = shape[1] as usize;
    for (row, text) in values.chunks(size).zip(texts) {
        let product: f32 = row.iter().zip(&values[..size]).map(|(a, b)| a * b).sum();
        println!("{product:.4}  {text}");
    }
    Ok(())
}
