import Foundation

/// The folder of the exported model. It has tables, and packages/NETWORK.mlpackage.
public let bundledModel = Bundle.module.resourceURL!.appendingPathComponent("Model")
