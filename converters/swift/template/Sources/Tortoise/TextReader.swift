import Foundation

/// Turns text into chunks of token ids.
///
/// It cleans text with the plain rules of `ane.text.english`, for lower case, signs and punctuation. It does not expand
/// abbreviations, acronyms, dates, times, money, units or Roman numerals. Foundation writes numbers as cardinals.
public struct TextReader {
    public struct Chunk: Sendable {
        public let text: String
        public let tokens: [Int]
    }

    private let tables: ModelTables.Text
    private let rules: [(NSRegularExpression, String)]
    private let ranks: [[String]: Int]
    private let letters: Set<Int>  // tokens with a letter

    public init(_ tables: ModelTables.Text) throws {
        self.tables = tables
        rules = try tables.rules.map { (try NSRegularExpression(pattern: $0.pattern), $0.replacement) }
        ranks = Dictionary(tables.merges.enumerated().map { ($1, $0) }, uniquingKeysWith: { first, _ in first })
        letters = Set(
            tables.vocabulary.filter { token, id in
                !tables.special.contains(id) && token.contains(where: \.isLetter)
            }.values)
    }

    /// Splits a text into chunks that are short enough for one pass. Chunks without a letter are left out.
    public func chunks(_ text: String) throws -> [Chunk] {
        let pieces: [String]
        if let split = tables.split {
            pieces = splitText(text, desired: split[0], maximum: split[1])
        } else {
            pieces = [text]
        }
        let chunks = try pieces.flatMap { try fitting($0, tables.split ?? [1, 1]) }
        if chunks.isEmpty { throw TortoiseError.nothingToSay(text) }
        return chunks
    }

    /// Returns the piece as one chunk. If it has too many tokens, splits it into several chunks.
    private func fitting(_ piece: String, _ lengths: [Int]) throws -> [Chunk] {
        let ids = tokens(cleaned(piece))
        guard ids.contains(where: letters.contains) else { return [] }
        if ids.count <= tables.maxTokens { return [Chunk(text: piece, tokens: ids)] }
        guard lengths[1] > 1, piece.split(whereSeparator: \.isWhitespace).count > 1 else {
            throw TortoiseError.tooLong(
                "a chunk is \(ids.count) tokens long and the decoder takes at most "
                    + "\(tables.maxTokens): insert spaces, or shorten it")
        }
        let shorter = [max(1, lengths[0] / 2), lengths[1] / 2]
        return try splitText(piece, desired: shorter[0], maximum: shorter[1]).flatMap { try fitting($0, shorter) }
    }

    /// Converts a text to lower-case words, single spaces, and the punctuation that the model knows.
    public func cleaned(_ text: String) -> String {
        var text = spelled(text)
        for (sign, ascii) in ["’": "'", "‘": "'", "“": "\"", "”": "\"", "…": "..."] {
            text = text.replacingOccurrences(of: sign, with: ascii)
        }
        text = text.folding(options: .diacriticInsensitive, locale: nil).lowercased()
        for (expression, replacement) in rules {
            text = expression.stringByReplacingMatches(
                in: text, range: NSRange(text.startIndex..., in: text), withTemplate: replacement)
        }
        return text.trimmingCharacters(in: .whitespacesAndNewlines)
    }

    /// Writes numbers as words: "1,205" → "one thousand two hundred five".
    private func spelled(_ text: String) -> String {
        let formatter = NumberFormatter()
        formatter.numberStyle = .spellOut
        formatter.locale = Locale(identifier: "en_US")
        return text.replacing(/[0-9][0-9,]*(\.[0-9]+)?/) { match in
            let digits = match.output.0.replacing(",", with: "")
            let comma = match.output.0.hasSuffix(",") ? "," : ""
            return (Double(digits).flatMap { formatter.string(from: NSNumber(value: $0)) } ?? String(digits)) + comma
        }
    }

    /// Returns the token ids of cleaned text.
    public func tokens(_ text: String) -> [Int] {
        let words = text.split(separator: " ", omittingEmptySubsequences: false).map { word in
            groups(word).flatMap(encoded)
        }
        return Array(words.joined(separator: tables.space.map { [$0] } ?? []))
    }

    /// Returns runs of letters, and runs of other characters.
    private func groups(_ word: Substring) -> [[String]] {
        word.reduce(into: [[String]]()) { groups, character in
            if let last = groups.last?.last, last.first!.isLetter == character.isLetter {
                groups[groups.count - 1].append(String(character))
            } else {
                groups.append([String(character)])
            }
        }
    }

    /// Encodes with byte-pair encoding (Sennrich et al. 2016), which joins the pairs in the order of the training.
    private func encoded(_ characters: [String]) -> [Int] {
        var parts = characters
        while let (index, _) = zip(parts, parts.dropFirst()).enumerated()
            .compactMap({ index, pair in ranks[[pair.0, pair.1]].map { (index, $0) } }).min(by: { $0.1 < $1.1 })
        {
            parts.replaceSubrange(index...index + 1, with: [parts[index] + parts[index + 1]])
        }
        return parts.compactMap { tables.vocabulary[$0] ?? tables.unknown }
    }
}
