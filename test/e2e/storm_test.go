package e2e

import "os"

// storm returns the size of a test: usual, or full with CORACLE_TEST_STORM set (make nightly).
func storm(usual, full int) int {
	if os.Getenv("CORACLE_TEST_STORM") != "" {
		return full
	}
	return usual
}
