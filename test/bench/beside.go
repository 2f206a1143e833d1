package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"text/tabwriter"
)

// wantedRatios are the wanted ratios to upstream's figures.
var wantedRatios = map[string]float64{
	"pod creates, 1 writer": 2, "pod creates, 32 writers": 4, "list of 3000 pods, until the last byte": 4, "get": 2,
}

// pair is a figure of two clusters, each value the median of the rounds.
type pair struct {
	figure
	Other float64 `json:"other"`
	// Ratio is how many times better the first cluster is.
	Ratio  float64 `json:"ratio"`
	Wanted float64 `json:"wanted,omitempty"`
}

// compare measures two clusters in turn, several times, so that other load on the machine affects both.
func compare(ctx context.Context, o options, groups []group, progress io.Writer) ([]pair, error) {
	first, err := connect(o)
	if err != nil {
		return nil, err
	}
	o.kubeconfig, o.pids = o.beside, o.besidePids
	second, err := connect(o)
	if err != nil {
		return nil, err
	}
	var order []figure
	values := map[string]*[2][]float64{}
	for round := range o.rounds {
		for _, g := range groups {
			sides := []int{0, 1}
			if round%2 == 1 {
				sides = []int{1, 0}
			}
			for _, side := range sides {
				_, _ = fmt.Fprintf(progress, "round %d of %d: %s, %s ...\n", round+1, o.rounds, g.name,
					[]string{"this", "beside"}[side])
				found, err := g.run(ctx, []*cluster{first, second}[side])
				if err != nil {
					return nil, fmt.Errorf("%s: %w", g.name, err)
				}
				for _, f := range found {
					if values[f.Name] == nil {
						values[f.Name] = &[2][]float64{}
						order = append(order, f)
					}
					values[f.Name][side] = append(values[f.Name][side], f.Value)
				}
			}
		}
	}
	var pairs []pair
	for _, f := range order {
		f.Value, f.Budget, f.Note = median(values[f.Name][0]), 0, ""
		p := pair{figure: f, Other: median(values[f.Name][1]), Wanted: wantedRatios[f.Name]}
		above, below := p.Other, p.Value
		if f.More {
			above, below = below, above
		}
		if below > 0 {
			p.Ratio = above / below
		}
		pairs = append(pairs, p)
	}
	return pairs, nil
}

func median(all []float64) float64 {
	if len(all) == 0 {
		return 0
	}
	return slices.Sorted(slices.Values(all))[len(all)/2]
}

func printPairs(out io.Writer, pairs []pair) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	_, err := fmt.Fprintln(w, "WHAT\tTHIS\tBESIDE\tTIMES BETTER\tWANTED\t")
	for _, p := range pairs {
		wanted, verdict := "-", ""
		if p.Wanted > 0 {
			wanted, verdict = strconv.FormatFloat(p.Wanted, 'f', -1, 64), "ok"
			if p.Ratio < p.Wanted {
				verdict = "MISSED"
			}
		}
		ratio := "-" // one value is too small to be measured
		if p.Ratio > 0 {
			ratio = fmt.Sprintf("%.2f", p.Ratio)
		}
		_, e := fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", p.Name, amount(p.Value, p.Unit), amount(p.Other, p.Unit), ratio,
			wanted, verdict)
		err = errors.Join(err, e)
	}
	return errors.Join(err, w.Flush())
}
