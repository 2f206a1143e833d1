package e2e

import "os"

// storm returns how many to send or run: what fits into a test of each change, or, with CORACLE_TEST_STORM set (make
// nightly), what was promised.
func storm(usual, full int) int {
	if os.Getenv("CORACLE_TEST_STORM") != "" {
		return full
	}
	return usual
}
