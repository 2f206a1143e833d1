//go:build !race

package reconcile_test

// many is how many objects tests make that are about many.
const many = 1000
