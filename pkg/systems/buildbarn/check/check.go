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
	"encoding/json"
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
	// 2*protocol.MaxFactsBytes.
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
	facts   []*protocol.Facts
}

// prepared is a request with its cache key and the encoded input of the process.
type prepared struct {
	protocol.Request
	key  [sha256.Size]byte
	text []byte
}

func (r Request) prepare() (p prepared, err error) {
	mains := config.Mains(r.Component, r.Instance)
	used, err := config.Check(r.All, mains)
	if err != nil {
		return p, &Invalid{err.Error()}
	}
	p.Request = protocol.Request{Files: used, Fields: r.Fields}
	for _, m := range mains {
		p.Mains = append(p.Mains, protocol.Main{File: m.File, Program: m.Program, Variables: variables(m.Program)})
	}
	if p.text, err = json.Marshal(p.Request); err != nil {
		return p, err
	}
	p.key = sha256.Sum256(p.text)
	return p, nil
}

// Known returns the cached verdict on files. known is false if there is none yet. The error is an *Invalid.
func (c *Checker) Known(r Request) (v Verdict, known bool, err error) {
	p, err := r.prepare()
	if err != nil {
		return v, true, err
	}
	found, ok := c.verdicts.Get(p.key)
	if !ok {
		return v, false, nil
	}
	about := found.(verdict)
	if about.problem != "" {
		return v, true, &Invalid{about.problem}
	}
	return Verdict{p.Files, about.facts}, true, nil
}

// Check waits for a turn of the namespace, then checks the files that latest returns and caches the verdict for Known.
// An error means that the check failed, not that the files are invalid.
func (c *Checker) Check(ctx context.Context, namespace string, latest func() Request) error {
	if err := c.turns.take(ctx, namespace); err != nil {
		return err
	}
	defer c.turns.give(namespace)
	r := latest()
	p, err := r.prepare()
	if invalid := (*Invalid)(nil); errors.As(err, &invalid) {
		return nil // Known finds the fault without a process
	} else if err != nil {
		return err
	}
	if _, ok := c.verdicts.Get(p.key); ok {
		return nil
	}
	program, err := c.open()
	if err != nil {
		return err
	}
	answers, err := run(ctx, program, p)
	if err = errors.Join(err, program.Close()); err != nil {
		return fmt.Errorf("the configuration could not be checked: %w", err)
	}
	c.verdicts.Add(p.key, verdictOf(answers))
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
		v.facts = append(v.facts, a.Facts)
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
