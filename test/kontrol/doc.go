// Package kontrol tests Kontrol with many clusters. Each is a real control plane in the test's process, behind a
// test/wire proxy that the tests cut.
package kontrol
