import Foundation

/// The folder of the model that this package was exported with: tables, and packages/NETWORK.mlpackage.
public let bundledModel = Bundle.module.resourceURL!.appendingPathComponent("Model")
