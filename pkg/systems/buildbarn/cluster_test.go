package buildbarn_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/coracle-dev/coracle/pkg/testing/controlplane"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type cluster struct{ *controlplane.Cluster }

func start(t testing.TB, o controlplane.Options) *cluster {
	t.Helper()
	return &cluster{controlplane.Start(t, o)}
}
