// Package export writes a running cluster, of Coracle or any other Kubernetes, as manifests that can be applied to an
// empty one: `coracle export`.
//
// What is written is what people asked for: the kinds are those that discovery names, custom resources included,
// without the fields that servers set (fields.go), without objects that controllers own, and without those that every
// cluster makes for itself (omit.go). Lists are read in pages and written as they come, so the memory it takes does not
// depend on how many objects there are.
//
// Its invariant: the same objects give the same bytes.
package export
