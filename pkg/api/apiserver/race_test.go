//go:build race

package apiserver

const raceDetector = true
