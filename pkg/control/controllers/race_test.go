//go:build race

package controllers_test

// many is the number of objects in tests of large clusters. The race detector makes each ten times as slow.
const many = 200
