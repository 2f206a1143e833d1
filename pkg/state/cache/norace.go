//go:build !race

package cache

const raceBuild = false
