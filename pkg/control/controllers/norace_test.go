//go:build !race

package controllers_test

// many is the number of objects in tests of large clusters.
const many = 1000
