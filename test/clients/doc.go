// Package clients tests the real binary with foreign clients: one generated from the server's OpenAPI documents,
// validators of those documents, controller-runtime's test suites, metrics-server, and each command of kubectl. Their
// modules and programs are in modules of their own below this folder, so that Coracle does not depend on their
// dependencies.
package clients
