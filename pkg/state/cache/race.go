//go:build race

package cache

const raceBuild = true
