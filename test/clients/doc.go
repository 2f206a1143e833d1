// Package clients drives clients that are not ours against the real binary: one that is generated from the OpenAPI documents that the
// server publishes, validators of those documents, and the test suites of controller-runtime. Their modules, and the programs
// made of them, are in the module below foreign, so that their dependencies are not Coracle's.
package clients
