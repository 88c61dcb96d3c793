// Compare texts over HTTP with `qdqbert serve`, with the standard library of .NET alone.
//
//     qdqbert serve ./my-embedder-int8
//     dotnet run Similarity.cs http://localhost:8000 "A fine film." "A good movie." "A wet road."
//
// Prints the cosine of the first text and each other one. If the server has a key, it is the
// environment variable QDQBERT_API_KEY.

using System;
using System.Globalization;
using System.Linq;
using System.Net;
using System.Net.Http;
using System.Net.Http.Headers;
using System.Text;
using System.Threading.Tasks;
using System.Web;

public static class Similarity
{
    static string Quoted(string text)
    {
        return HttpUtility.JavaScriptStringEncode(text, true);
    }

    static async Task<double[]> Compare(string url, string text, string[] others)
    {
        string sentences = string.Join(",", others.Select(Quoted));
        string body = "{\"inputs\": {\"source_sentence\": " + Quoted(text) + ", \"sentences\": [" + sentences + "]}}";
        using (var client = new HttpClient { Timeout = TimeSpan.FromMinutes(1) })
        {
            string key = Environment.GetEnvironmentVariable("QDQBERT_API_KEY");
            if (!string.IsNullOrEmpty(key))
            {
                client.DefaultRequestHeaders.Authorization = new AuthenticationHeaderValue("Bearer", key);
            }
            var content = new StringContent(body, Encoding.UTF8, "application/json");
            HttpResponseMessage response = await client.PostAsync(url + "/similarity", content);
            string answer = await response.Content.ReadAsStringAsync();
            if (response.StatusCode != HttpStatusCode.OK)
            {
                throw new HttpRequestException((int)response.StatusCode + ": " + answer);
            }
            // The answer is a list of numbers.
            return answer.Trim('[', ']').Split(',')
                .Select(each => double.Parse(each, CultureInfo.InvariantCulture)).ToArray();
        }
    }

    public static int Main(string[] words)
    {
        if (words.Length < 3)
        {
            Console.Error.WriteLine("usage: Similarity URL TEXT TEXT...");
            return 2;
        }
        Console.OutputEncoding = new UTF8Encoding(false);
        string[] others = words.Skip(2).ToArray();
        try
        {
            double[] found = Compare(words[0], words[1], others).GetAwaiter().GetResult();
            for (int index = 0; index < found.Length; index++)
            {
                string cosine = found[index].ToString("F4", CultureInfo.InvariantCulture);
                Console.WriteLine(cosine + "  " + others[index]);
            }
            return 0;
        }
        catch (HttpRequestException error)
        {
            Console.Error.WriteLine(error.Message);
            return 1;
        }
    }
}
