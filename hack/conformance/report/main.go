// Command report reads a ginkgo report of the conformance suite, prints passed, failed and skipped tests with the
// first line of each failure, and compares them with the list of tests known to pass.
package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/onsi/ginkgo/v2/types"
)

func main() {
	log.SetFlags(0)
	passing := flag.String("passing", "", "the list of tests that pass, a name a line")
	update := flag.Bool("update", false, "add what passed to the list")
	every := flag.Bool("all", false, "fail unless each test of the list was run and passed")
	label := flag.String("label", "Conformance", "the label of the tests that count")
	flag.Parse()
	if flag.NArg() != 1 || *passing == "" {
		log.Fatal("usage: report -passing LIST [-update] [-all] [-label LABEL] REPORT.json")
	}
	if err := run(flag.Arg(0), *passing, *label, *update, *every); err != nil {
		log.Fatal(err)
	}
}

func run(file, list, label string, update, every bool) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var reports []types.Report
	if err := json.Unmarshal(data, &reports); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	known, err := read(list)
	if err != nil {
		return err
	}
	r := summarize(reports, label)
	for _, f := range slices.SortedFunc(slices.Values(r.failed), func(a, b failure) int {
		return cmp.Compare(a.name, b.name)
	}) {
		fmt.Printf("FAILED  %s\n        %s\n", f.name, f.line)
	}
	fmt.Printf("%d passed, %d failed, %d skipped of %d\n", len(r.passed), len(r.failed),
		r.total-len(r.passed)-len(r.failed), r.total)
	var lost []string
	for _, f := range r.failed {
		if known[f.name] {
			lost = append(lost, f.name)
		}
	}
	if update {
		for _, name := range r.passed {
			known[name] = true
		}
		text := strings.Join(slices.Sorted(maps.Keys(known)), "\n") + "\n"
		if err := os.WriteFile(list, []byte(text), 0o644); err != nil {
			return err
		}
		fmt.Printf("%s names %d tests\n", list, len(known))
	}
	if every {
		for _, name := range slices.Sorted(maps.Keys(known)) {
			if !slices.Contains(r.passed, name) && !slices.Contains(lost, name) {
				lost = append(lost, name+" (not run)")
			}
		}
	}
	if len(lost) > 0 {
		return fmt.Errorf("these tests passed before and must not fail:\n  %s", strings.Join(lost, "\n  "))
	}
	return nil
}

type failure struct{ name, line string }

// result is a run of the suite; total counts all tests with the label, run or not.
type result struct {
	passed []string
	failed []failure
	total  int
}

func summarize(reports []types.Report, label string) (r result) {
	for _, report := range reports {
		for _, spec := range report.SpecReports {
			if spec.LeafNodeType != types.NodeTypeIt || !slices.Contains(spec.Labels(), label) {
				continue
			}
			r.total++
			switch {
			case spec.State == types.SpecStatePassed:
				r.passed = append(r.passed, spec.FullText())
			case spec.State.Is(types.SpecStateFailureStates):
				line, _, _ := strings.Cut(strings.TrimSpace(spec.Failure.Message), "\n")
				r.failed = append(r.failed, failure{spec.FullText(), line})
			}
		}
	}
	return r
}

// read returns the names in the list. The list is empty if the file does not exist.
func read(file string) (map[string]bool, error) {
	known := map[string]bool{}
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return known, nil
	}
	for line := range strings.Lines(string(data)) {
		if line = strings.TrimSpace(line); line != "" {
			known[line] = true
		}
	}
	return known, err
}
