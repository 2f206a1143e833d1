// Package clients tests the real binary with foreign clients: one generated from the server's OpenAPI documents,
// validators of those documents, and controller-runtime's test suites. Their modules and programs are in the module
// below foreign, so that Coracle does not depend on their dependencies.
package clients
