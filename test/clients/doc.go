// Package clients tests the real binary with foreign clients: a client generated from the server's OpenAPI documents,
// validators of those documents, controller-runtime's test suites, metrics-server, and each command of kubectl. The
// clients are in separate modules below this folder, so that Coracle does not depend on their dependencies.
package clients
