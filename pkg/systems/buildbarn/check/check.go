// Package check checks Buildbarn configurations as thoroughly as the programs that read them: it evaluates the Jsonnet
// and compares the result with the programs' own schema. Both happen in a child process with little memory and
// processor time (cmd/coracle-buildbarn-check), since files may be hostile.
//
// Its invariants: for any files, Check returns, and this process neither grows nor crashes; the program's own parser
// accepts what Check accepts; and one namespace's files do not delay the checks of others.
package check

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"

	"k8s.io/utils/lru"

	buildbarn "github.com/coracle-dev/coracle/apis/buildbarn/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/buildbarn/check/protocol"
	"github.com/coracle-dev/coracle/pkg/systems/buildbarn/config"
)

const (
	// kept is the number of cached verdicts, since reconcilers ask repeatedly. A verdict takes a few KiB, at most
	// 2*(protocol.MaxFactsBytes+protocol.MaxUsedBytes).
	kept = 1000
	// atOnce bounds the concurrent processes, ofOne those for one namespace.
	atOnce, ofOne = 3, 2
)

// Checker checks files. It is safe for concurrent use.
type Checker struct {
	open     func() (*os.File, error)
	verdicts *lru.Cache
	turns    *turns
}

// New returns a checker that runs the program that open returns.
func New(open func() (*os.File, error)) *Checker {
	return &Checker{open: open, verdicts: lru.New(kept), turns: newTurns(atOnce, ofOne)}
}

// Invalid is the error for files with a fault. Problem is written for users.
type Invalid struct{ Problem string }

func (e *Invalid) Error() string { return e.Problem }

// Request selects the files to check: of All, the ones that the programs of a component read.
type Request struct {
	All map[string]string
	// Component is one of the five kinds of parts. Instance is the instance name of workers.
	Component, Instance string
	// Fields makes the check compare the files' fields with the built-in schema of Buildbarn.
	Fields bool
}

// Verdict describes files that are valid.
type Verdict struct {
	// Files are the files that the programs read.
	Files map[string]string
	// Facts are, for each program's file, its facts about the farm around it; nil if they are not known.
	Facts []*protocol.Facts
}

type verdict struct {
	problem string
	used    []string
	facts   []*protocol.Facts
}

// key identifies the question that a verdict answers. It covers all files, since the process finds out which are read.
type key struct {
	files               [sha256.Size]byte
	component, instance string
	fields              bool
}

func (r Request) key() key { return key{config.Sum(r.All), r.Component, r.Instance, r.Fields} }

func (r Request) encode() protocol.Request {
	p := protocol.Request{Files: r.All, Fields: r.Fields}
	for _, m := range config.Mains(r.Component, r.Instance) {
		p.Mains = append(p.Mains, protocol.Main{File: m.File, Program: m.Program, Variables: variables(m.Program)})
	}
	return p
}

// Known returns the cached verdict on files. known is false if there is none yet. The error is an *Invalid.
func (c *Checker) Known(r Request) (v Verdict, known bool, err error) {
	found, ok := c.verdicts.Get(r.key())
	if !ok {
		return v, false, nil
	}
	about := found.(verdict)
	if about.problem != "" {
		return v, true, &Invalid{about.problem}
	}
	v = Verdict{map[string]string{}, about.facts}
	for _, name := range about.used {
		v.Files[name] = r.All[name]
	}
	return v, true, nil
}

// Check waits for a turn of the namespace, then checks the files that latest returns and caches the verdict for Known.
// An error means that the check failed, not that the files are invalid.
func (c *Checker) Check(ctx context.Context, namespace string, latest func() Request) error {
	if err := c.turns.take(ctx, namespace); err != nil {
		return err
	}
	defer c.turns.give(namespace)
	r := latest()
	k := r.key()
	if _, ok := c.verdicts.Get(k); ok {
		return nil
	}
	program, err := c.open()
	if err != nil {
		return err
	}
	answers, err := run(ctx, program, r.encode())
	if err = errors.Join(err, program.Close()); err != nil {
		return fmt.Errorf("the configuration could not be checked: %w", err)
	}
	c.verdicts.Add(k, verdictOf(answers))
	return nil
}

func verdictOf(answers []protocol.Answer) (v verdict) {
	for _, a := range answers {
		if a.Unknown {
			a.Problem += "; if the image is of another version of Buildbarn that has it, annotate the ConfigMap with " +
				buildbarn.AnnotationFields + "=" + buildbarn.FieldsUnchecked
		}
		if a.Problem != "" {
			return verdict{problem: a.Problem}
		}
		v.used, v.facts = append(v.used, a.Used...), append(v.facts, a.Facts)
	}
	return v
}

// variables returns the environment of a program's container, with made-up values.
func variables(program string) map[string]string {
	v := map[string]string{
		"HOME":                    "/",
		"HOSTNAME":                "pod-0",
		"PATH":                    "/bin",
		"KUBERNETES_SERVICE_HOST": "10.0.0.1",
		"KUBERNETES_SERVICE_PORT": "443",
	}
	if program == "worker" {
		v["NODE_NAME"], v["POD_NAME"] = "node", "pod-0"
	}
	return v
}
