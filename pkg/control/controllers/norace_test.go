//go:build !race

package controllers_test

// many is how many objects tests make that are about many.
const many = 1000
