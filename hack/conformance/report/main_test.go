package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/onsi/ginkgo/v2/types"
	"github.com/stretchr/testify/require"
)

func TestListGrowsAndIsHeld(t *testing.T) {
	dir := t.TempDir()
	list, file := filepath.Join(dir, "passing.txt"), filepath.Join(dir, "report.json")
	require.NoError(t, os.WriteFile(list, []byte("z breaks\nz skipped\n"), 0o600))
	spec := func(name string, state types.SpecState) types.SpecReport {
		return types.SpecReport{
			LeafNodeType: types.NodeTypeIt, LeafNodeText: name, LeafNodeLabels: []string{"Conformance"}, State: state,
			Failure: types.Failure{Message: "first line\nsecond"},
		}
	}
	other := spec("no conformance test", types.SpecStatePassed)
	other.LeafNodeLabels = nil
	reports := []types.Report{{SpecReports: types.SpecReports{
		spec("a passes", types.SpecStatePassed), spec("z breaks", types.SpecStateTimedout),
		spec("b fails", types.SpecStatePanicked),
		spec("z skipped", types.SpecStateSkipped), other,
	}}}
	data, err := json.Marshal(reports)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, data, 0o600))

	r := summarize(reports)
	require.Equal(t, 4, r.total)
	require.Equal(t, []string{"a passes"}, r.passed)
	require.Equal(t, []failure{{"z breaks", "first line"}, {"b fails", "first line"}}, r.failed)

	err = run(file, list, true, false)
	require.ErrorContains(t, err, "z breaks", "a test that passed before must pass")
	require.NotContains(t, err.Error(), "b fails")
	text, err := os.ReadFile(list)
	require.NoError(t, err)
	require.Equal(t, "a passes\nz breaks\nz skipped\n", string(text))

	require.NoError(t, os.WriteFile(list, []byte("a passes\nz skipped\n"), 0o600))
	require.NoError(t, run(file, list, false, false), "a test that did not run does not count as failed")
	require.ErrorContains(t, run(file, list, false, true), "z skipped (not run)")
	require.NoError(t, os.WriteFile(list, []byte("a passes\n"), 0o600))
	require.NoError(t, run(file, list, false, true))
}
