//go:build race

package controllers_test

// many is how many objects tests make that are about many: the race detector makes each ten times as slow.
const many = 200
