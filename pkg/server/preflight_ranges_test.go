package server

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOutsideRanges(t *testing.T) {
	const pods, services = "10.42.0.0/16", "10.43.0.0/16"
	require.NoError(t, outsideRanges("192.0.2.1", pods, services))
	require.ErrorContains(t, outsideRanges("10.42.3.4", pods, services), "10.42.3.4 is in --cluster-cidr 10.42.0.0/16")
	require.ErrorContains(t, outsideRanges("10.43.0.1", pods, services), "is in --service-cidr 10.43.0.0/16")
}
