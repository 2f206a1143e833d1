// Package export writes the objects of a running cluster, Coracle or any other Kubernetes, as manifests for an empty
// cluster: `coracle export`.
//
// It writes what users created: objects of all kinds found by discovery, custom resources included, without the fields
// that servers set (fields.go) and without objects that controllers own or that every cluster creates itself (omit.go).
// It reads lists in pages and writes them as they arrive, so memory does not grow with the number of objects.
//
// Its invariant: the same objects result in the same bytes.
package export
