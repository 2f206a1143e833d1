// Package check checks configurations of Buildbarn as deep as the programs do that read them: Jsonnet is evaluated, and what comes out compared with the
// programs' own schema. Both happen in a process with little memory and processor time (cmd/coracle-buildbarn-check), since files may be hostile.
//
// It may import apis and buildbarn/config. Its invariants: whatever the files, Files ends, and this process neither grows nor ends with it; what it accepts, the
// program's own parser does too.
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
	"github.com/coracle-dev/coracle/pkg/buildbarn/check/protocol"
	"github.com/coracle-dev/coracle/pkg/buildbarn/config"
)

const (
	// kept is how many verdicts are remembered, of 1 KiB at most. Reconcilers ask again and again.
	kept = 1000
	// atOnce is how many processes run at a time.
	atOnce = 2
)

// Checker checks files. It may be used by several goroutines.
type Checker struct {
	open     func() (*os.File, error)
	verdicts *lru.Cache
	slots    chan struct{}
}

// New returns a checker that runs the program that open returns.
func New(open func() (*os.File, error)) *Checker {
	return &Checker{open: open, verdicts: lru.New(kept), slots: make(chan struct{}, atOnce)}
}

// Invalid is what is wrong with files, for people.
type Invalid struct{ Problem string }

func (e *Invalid) Error() string { return e.Problem }

// Files returns the files that the programs of a component read, of all that there are; the instance is that of workers. fields is whether their fields
// are compared with those of the Buildbarn whose schema is here. The error is an *Invalid, or says nothing about the files.
func (c *Checker) Files(ctx context.Context, all map[string]string, component, instance string, fields bool) (map[string]string, error) {
	mains := config.Mains(component, instance)
	used, err := config.Check(all, mains)
	if err != nil {
		return nil, &Invalid{err.Error()}
	}
	r := protocol.Request{Files: used, Fields: fields}
	for _, m := range mains {
		r.Mains = append(r.Mains, protocol.Main{File: m.File, Program: m.Program, Variables: variables(m.Program)})
	}
	problem, err := c.verdict(ctx, r)
	if err != nil {
		return nil, err
	}
	if problem != "" {
		return nil, &Invalid{problem}
	}
	return used, nil
}

// variables are the environment of a program's container. Its values are made up.
func variables(program string) map[string]string {
	v := map[string]string{"HOME": "/", "HOSTNAME": "pod-0", "PATH": "/bin", "KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
	if program == "worker" {
		v["NODE_NAME"], v["POD_NAME"] = "node", "pod-0"
	}
	return v
}

// verdict returns the first problem; empty if there is none.
func (c *Checker) verdict(ctx context.Context, r protocol.Request) (string, error) {
	text, err := json.Marshal(r)
	if err != nil {
		return "", err
	}
	key := sha256.Sum256(text)
	if problem, ok := c.verdicts.Get(key); ok {
		return problem.(string), nil
	}
	select {
	case c.slots <- struct{}{}:
		defer func() { <-c.slots }()
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
	program, err := c.open()
	if err != nil {
		return "", err
	}
	a, err := run(ctx, program, r)
	if err = errors.Join(err, program.Close()); err != nil {
		return "", fmt.Errorf("the configuration could not be checked: %w", err)
	}
	if a.Unknown {
		a.Problem += "; if the image is of another version of Buildbarn that has it, annotate the ConfigMap with " + buildbarn.AnnotationFields + "=" + buildbarn.FieldsUnchecked
	}
	c.verdicts.Add(key, a.Problem)
	return a.Problem, nil
}
