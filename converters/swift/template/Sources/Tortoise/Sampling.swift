import Foundation

/// Samples codes as `ane.models.tortoise.sampling` does, with repetition penalty, temperature, top-k and top-p.
public struct Sampling: Codable, Sendable {
    public var temperature, repetitionPenalty, topP: Double
    public var topK, maxCodes: Int

    /// Returns the ids that can be sampled, ascending, and their probabilities. The penalty applies to the ids in `history`.
    public func distribution(_ logits: [Float], history: Set<Int>) -> (ids: [Int], probabilities: [Float]) {
        var scores = logits
        let penalty = Float(repetitionPenalty)
        for id in history { scores[id] = scores[id] < 0 ? scores[id] * penalty : scores[id] / penalty }
        for id in scores.indices { scores[id] /= Float(temperature) }

        let threshold = scores.sorted(by: >)[min(topK, scores.count) - 1]
        let likely = scores.indices.filter { scores[$0] >= threshold && scores[$0] > -.infinity }
        let ascending = likely.sorted { (scores[$0], $0) < (scores[$1], $1) }
        var cumulative: Float = 0
        let kept = zip(ascending, probabilities(ascending.map { scores[$0] })).filter { id, probability in
            cumulative += probability
            return cumulative > Float(1 - topP) || id == ascending.last
        }
        let ids = kept.map(\.0).sorted()
        return (ids, probabilities(ids.map { scores[$0] }))
    }

    private func probabilities(_ scores: [Float]) -> [Float] {
        let most = scores.max() ?? 0
        let logSum = log(scores.reduce(Float(0)) { $0 + exp($1 - most) })
        return scores.map { exp($0 - most - logSum) }
    }
}

/// Returns the id whose interval of the cumulative distribution contains `uniform`.
public func sampled(_ ids: [Int], _ probabilities: [Float], uniform: Double) -> Int {
    var sum = 0.0
    let cumulative = probabilities.map {
        sum += Double($0)
        return sum
    }
    return ids[cumulative.firstIndex { $0 > uniform * sum } ?? ids.count - 1]
}
