package fake

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/coracle-dev/coracle/pkg/node/runtime/runtimetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	(&runtimetest.Suite{Runtime: New(Config{})}).Run(t)
}
