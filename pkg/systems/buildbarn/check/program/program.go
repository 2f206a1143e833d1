// Package program implements cmd/coracle-buildbarn-check: it evaluates Jsonnet with only the given files, and compares
// the result with the schema of Buildbarn's programs. Only that command imports it, so that no other process contains
// the evaluator and the schema. Its invariant: it reads no file of the machine.
package program

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	evaluator "github.com/google/go-jsonnet"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
	"github.com/coracle-dev/coracle/pkg/systems/buildbarn/check/protocol"
	"github.com/coracle-dev/coracle/pkg/systems/buildbarn/schema"
)

// Run answers one request. It stops after the first file with a problem.
func Run(in io.Reader, out io.Writer) error {
	var r protocol.Request
	if err := json.NewDecoder(in).Decode(&r); err != nil {
		return err
	}
	known, err := schema.Load()
	if err != nil {
		return err
	}
	w := json.NewEncoder(out)
	files := importer{}
	for name, text := range r.Files {
		files[name] = evaluator.MakeContents(text)
	}
	for _, m := range r.Mains {
		a := check(files, m, known, r)
		a.Problem = bounded.Text(a.Problem, maxProblem)
		if err := w.Encode(a); err != nil || a.Problem != "" {
			return err
		}
	}
	return nil
}

// maxProblem bounds a reported problem, in bytes.
const maxProblem = 1000

func check(files importer, m protocol.Main, known *schema.Schema, r protocol.Request) (a protocol.Answer) {
	used, output, err := evaluate(files, m)
	var facts protocol.Facts
	if err == nil && r.Fields {
		facts, err = known.Check(m.Program, []byte(output))
	}
	read := map[string]string{}
	for _, name := range used {
		read[name] = r.Files[name]
	}
	if wrong := (*schema.Error)(nil); errors.As(err, &wrong) {
		return protocol.Answer{Problem: place(read, m.File, wrong.Field) + ": " + wrong.Error(), Unknown: wrong.Unknown}
	}
	if err != nil {
		return protocol.Answer{Problem: err.Error()}
	}
	a.Used = used
	if r.Fields {
		a.Facts = located(facts, read, m.File)
	}
	return a
}

// evaluate returns the names of the files that the program reads, and the configuration as JSON.
func evaluate(files importer, m protocol.Main) (used []string, output string, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%s: the evaluator failed: %v", m.File, p)
		}
	}()
	vm := evaluator.MakeVM()
	vm.Importer(files)
	vm.SetTraceOut(io.Discard) // standard error is reserved for the reason why the process ended
	for k, v := range m.Variables {
		vm.ExtVar(k, v)
	}
	// An import whose value is not needed here may be needed in the pod, where variables differ.
	used, err = vm.FindDependencies("", []string{m.File})
	if err != nil {
		return nil, "", errors.New(plain(m.File, err.Error()))
	}
	used = append(slices.DeleteFunc(used, secret), m.File)
	if len(strings.Join(used, "")) > protocol.MaxUsedBytes {
		return nil, "", fmt.Errorf("%s: the names of its imported files are longer than %d KiB", m.File,
			protocol.MaxUsedBytes>>10)
	}
	output, err = vm.EvaluateFile(m.File)
	if err == nil && len(output) > protocol.OutputBytes {
		return nil, "", fmt.Errorf("%s: its result is larger than %d MiB of JSON", m.File, protocol.OutputBytes>>20)
	}
	if err == nil {
		return used, output, nil
	}
	text := plain(m.File, err.Error())
	if strings.Contains(text, "Undefined external variable") {
		text += fmt.Sprintf("; the container has %s", strings.Join(slices.Sorted(maps.Keys(m.Variables)), ", "))
	}
	return nil, "", errors.New(text)
}

// importer holds the files of a ConfigMap, which is mounted at /config. It invents the files of the Secret at /tls.
type importer map[string]evaluator.Contents

// Import returns the same Contents for the same file, as jsonnet.Importer requires.
func (i importer) Import(_, imported string) (evaluator.Contents, string, error) {
	name := strings.TrimPrefix(path.Clean(imported), "/config/")
	if _, ok := i[name]; !ok && secret(name) {
		i[name] = evaluator.MakeContents("a file of a Secret")
	}
	if c, ok := i[name]; ok {
		return c, name, nil
	}
	there := slices.Sorted(maps.Keys(i))
	if len(there) > maxListed {
		there = append(there[:maxListed], "...")
	}
	return evaluator.Contents{}, "", fmt.Errorf("the file %s is missing; there are: %s", imported,
		cmp.Or(strings.Join(there, ", "), "none"))
}

func secret(name string) bool { return strings.HasPrefix(name, protocol.Mounted) }

// maxListed bounds the existing files that an error names.
const maxListed = 10

// location matches the evaluator's positions: file:line:column-column or file:(line:column)-(line:column).
var location = regexp.MustCompile(`^([^\s:]+):(?:(\d+):\d+(?:-\d+)?|\((\d+):\d+\)-\(\d+:\d+\))(?:\s+|$)`)

// plain turns an error with a stack trace into one line, "file:line: problem".
func plain(file, text string) string {
	first, trace, _ := strings.Cut(text, "\n")
	first, evaluated := strings.CutPrefix(first, "RUNTIME ERROR: ")
	if m := location.FindStringSubmatch(first); m != nil { // a fault of syntax, also in an imported file
		return m[1] + ":" + m[2] + m[3] + ": " + first[len(m[0]):]
	}
	if evaluated {
		for line := range strings.Lines(trace) {
			if m := location.FindStringSubmatch(strings.TrimSpace(line)); m != nil && m[1] != "<std>" {
				return m[1] + ":" + m[2] + m[3] + ": " + first
			}
		}
	}
	return file + ": " + first
}
