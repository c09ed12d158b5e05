import Foundation

// Splits text into chunks as `ane.text.splitter` does, except that it does not know abbreviations, enumerations and quantities.

/// A piece of text that is not split further, and the cost of a break after the piece.
private struct Piece {
    let text: String
    let cost: Double

    var length: Int { text.unicodeScalars.count }
}

private enum Cost {
    static let paragraph = 0.0, sentence = 0.05, quoted = 0.3, uncertain = 0.5, line = 6.0, clause = 8.0, comma = 10.0
    static let word = 40.0, shortChunk = 50.0, chunk = 0.05
}

/// Splits `text` into chunks of about `desired` and at most `maximum` characters, where a longer word stays whole and "|" is a break.
func splitText(_ text: String, desired: Int, maximum: Int) -> [String] {
    text.split(separator: "|").flatMap { part in
        packed(pieces(words(String(part)), maximum), desired, maximum)
    }.filter { $0.contains { $0.isLetter || $0.isNumber } }
}

private func words(_ text: String) -> [Piece] {
    let found = text.matches(of: /\S+/)
    var quoted = false
    return found.indices.map { index in
        let word = String(found[index].output)
        let next = index + 1 < found.count ? found[index + 1] : nil
        let gap = next.map { String(text[found[index].range.upperBound..<$0.range.lowerBound]) } ?? "\n\n"
        if word.filter({ "\"“”".contains($0) }).count % 2 == 1 { quoted.toggle() }
        var cost = breakCost(word, gap, next.map { String($0.output) } ?? "")
        if cost == Cost.paragraph { quoted = false }
        if cost == Cost.sentence && quoted { cost = Cost.quoted }
        return Piece(text: word, cost: cost)
    }
}

private func breakCost(_ word: String, _ gap: String, _ following: String) -> Double {
    if gap.filter({ $0 == "\n" }).count > 1 { return Cost.paragraph }
    if !following.contains(where: { $0.isLetter || $0.isNumber }) { return Cost.word }
    let core = word.trimmingEnd("\"'”’»)]}*_")
    if let mark = core.last, ".!?…。！？".contains(mark) {
        let first = following.drop { "\"'“‘«([{*_¿¡".contains($0) }.first
        return first?.isLowercase == true ? Cost.uncertain : Cost.sentence
    }
    if gap.contains("\n") { return Cost.line }
    if let mark = core.last, ";:—–".contains(mark) { return Cost.clause }
    if ["-", "--"].contains(word) || word.hasSuffix(")") || word.hasSuffix("]") { return Cost.clause }
    return core.hasSuffix(",") ? Cost.comma : Cost.word
}

/// Joins words to clauses. The words of a sentence longer than `maximum` are not joined.
private func pieces(_ words: [Piece], _ maximum: Int) -> [Piece] {
    cut(words, after: Cost.quoted).flatMap { sentence -> [Piece] in
        if joined(sentence).length <= maximum { return cut(sentence, after: Cost.comma).map(joined) }
        return cut(sentence, after: Cost.word).flatMap { joined($0).length <= maximum ? [joined($0)] : $0 }
    }
}

private func cut(_ pieces: [Piece], after cost: Double) -> [[Piece]] {
    var runs: [[Piece]] = [[]]
    for piece in pieces {
        runs[runs.count - 1].append(piece)
        if piece.cost <= cost { runs.append([]) }
    }
    return runs.filter { !$0.isEmpty }
}

private func joined(_ run: [Piece]) -> Piece {
    Piece(text: run.map(\.text).joined(separator: " "), cost: run.last!.cost)
}

/// Joins neighbouring pieces into chunks at the lowest total cost, by dynamic programming. The cost of a chunk is the sum
/// of a constant, which is higher for a short chunk, the squared relative distance of its length from `desired`, and the
/// cost of the break after it.
private func packed(_ pieces: [Piece], _ desired: Int, _ maximum: Int) -> [String] {
    func relative(_ length: Int) -> Double { pow(Double(length) / Double(desired) - 1, 2) }
    let weight = max(1, relative(maximum))
    var (best, start) = ([0.0], [0])
    for end in stride(from: 1, through: pieces.count, by: 1) {
        let last = pieces[end - 1]
        let after = last.cost * (last.cost >= Cost.uncertain ? weight : 1)
        var (lowest, choice, length) = (Double.infinity, end - 1, -1)
        for begin in stride(from: end - 1, through: 0, by: -1) {
            length += pieces[begin].length + 1
            if length > maximum && begin < end - 1 { break }
            let short = length * 5 < desired ? Cost.shortChunk * weight : 0
            let total = best[begin] + Cost.chunk + relative(length) + short + after
            if total <= lowest { (lowest, choice) = (total, begin) }  // among equal costs, the longest chunk
        }
        best.append(lowest)
        start.append(choice)
    }
    var (chunks, end) = ([String](), pieces.count)
    while end > 0 {
        chunks.append(pieces[start[end]..<end].map(\.text).joined(separator: " "))
        end = start[end]
    }
    return chunks.reversed()
}

extension String {
    fileprivate func trimmingEnd(_ characters: String) -> Substring {
        self[..<(lastIndex { !characters.contains($0) }.map(index(after:)) ?? startIndex)]
    }
}
