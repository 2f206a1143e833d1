// Package kontrol tests Kontrol with many clusters, each a real control plane in the test's process, behind wires that
// are cut.
package kontrol
