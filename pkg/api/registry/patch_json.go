package registry

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	kjson "sigs.k8s.io/json"

	"github.com/coracle-dev/coracle/pkg/api/payload"
	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

// limitCopies sets upstream's limit on the bytes added by copy operations of one JSON patch. The library offers
// only a variable, which applies to the whole process.
func limitCopies() {
	if have := atomic.LoadInt64(&jsonpatch.AccumulatedCopySizeLimit); have <= 0 || have > maxPatchBytes {
		atomic.StoreInt64(&jsonpatch.AccumulatedCopySizeLimit, maxPatchBytes)
	}
}

func (p *patch) parseOperations(bad func(error) error) error {
	var ops []struct {
		Op    string `json:"op"`
		Path  string `json:"path"`
		From  string `json:"from"`
		Value any    `json:"value"`
	}
	problems, err := kjson.UnmarshalStrict(p.data, &ops)
	if err != nil {
		return bad(err)
	}
	for _, e := range problems {
		p.problems = append(p.problems, fmt.Errorf("json patch %w", e))
	}
	if len(ops) > maxOperations {
		return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf(
			"The allowed maximum operations in a JSON patch is %d, got %d", maxOperations, len(ops)))
	}
	for _, op := range ops {
		if strings.Count(op.Path, "/") > payload.MaxDepth || strings.Count(op.From, "/") > payload.MaxDepth {
			return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("a path of a JSON patch may have at most %d parts",
				payload.MaxDepth))
		}
		if op.Op == "copy" {
			p.copies++
		}
		p.managers = p.managers || reachesManagers(op.Path) ||
			(op.Op == "copy" || op.Op == "move") && reachesManagers(op.From)
		if indexes(op.Path) || indexes(op.From) {
			p.indexed++
		}
	}
	if p.ops, err = jsonpatch.DecodePatch(p.data); err != nil {
		return apierrors.NewBadRequest(bounded.Text(err.Error(), maxDetail))
	}
	return nil
}

// reachesManagers reports whether a path of a JSON patch is metadata.managedFields, leads to it or is in it.
func reachesManagers(path string) bool {
	return path == "" || path == "/metadata" || strings.HasPrefix(path, "/metadata/managedFields")
}

// withoutManagers cuts metadata.managedFields out of the JSON of a built-in object. It relies on metadata being
// encoded first and containing no other list of that name.
func withoutManagers(object []byte) []byte {
	start := bytes.Index(object, []byte(`,"managedFields":[`))
	if start < 0 {
		return object
	}
	depth, quoted := 0, false
	for i := start + len(`,"managedFields":`); i < len(object); i++ {
		switch c := object[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '[' || c == '{':
			depth++
		case c == ']' || c == '}':
			if depth--; depth == 0 {
				return slices.Concat(object[:start], object[i+1:])
			}
		}
	}
	return object
}

// applyOperations applies the operations of a JSON patch. The library panics on some invalid operations, such as
// replacing an object with nothing.
func (p *patch) applyOperations(before []byte) (after []byte, err error) {
	defer func() {
		if wrong := recover(); wrong != nil {
			err = fmt.Errorf("the operations cannot be applied to the object: %v", wrong)
		}
	}()
	return p.ops.Apply(before)
}

func indexes(path string) bool {
	_, err := strconv.Atoi(path[strings.LastIndexByte(path, '/')+1:])
	return err == nil
}
