package registry

import (
	"fmt"
	"reflect"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Estimated time to compile a CEL expression or a regular expression, as measured. The time of CEL's type checker is
// quadratic: a conjunction of 66 KB takes two seconds.
const (
	expressionMicros = 700
	squaresPerMicro  = 2000 // squared bytes of an expression
	patternPerMicro  = 2    // bytes of a pattern
	repeatMicros     = 250  // {n} in a pattern
	// maxCompileMicros limits the time for all expressions and patterns of an object. Upstream limits only the length of
	// one CEL expression, to 100,000 characters.
	maxCompileMicros = 700_000
)

// compiling are the groups whose kinds have CEL expressions or patterns.
var compiling = map[string]bool{
	"apiextensions.k8s.io": true, "admissionregistration.k8s.io": true, "resource.k8s.io": true,
}

// checkExpressions refuses an object whose expressions would take too long to compile. An update is allowed if old
// takes as long; old is nil on create.
func (c *call) checkExpressions(obj, old client.Object) error {
	if !compiling[c.Resource.Group] {
		return nil
	}
	cost := compileMicros(reflect.ValueOf(obj))
	if cost <= maxCompileMicros || old != nil && compileMicros(reflect.ValueOf(old)) >= cost {
		return nil
	}
	return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("the CEL expressions and patterns of %s %q take too long "+
		"to compile: an object may have about %d expressions or a single one of %d bytes: use fewer and shorter ones",
		c.Resource.Kind, obj.GetName(), maxCompileMicros/expressionMicros, 37_000))
}

func compileMicros(v reflect.Value) (n int64) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			return compileMicros(v.Elem())
		}
	case reflect.Struct:
		t := v.Type()
		for i := range t.NumField() {
			if f := v.Field(i); f.Kind() != reflect.String {
				n += compileMicros(f)
			} else if f.Len() > 0 {
				n += textMicros(t.Field(i).Name, f.String())
			}
		}
	case reflect.Slice:
		if k := v.Type().Elem().Kind(); k != reflect.Struct && k != reflect.Pointer {
			return 0
		}
		for i := range v.Len() {
			n += compileMicros(v.Index(i))
		}
	case reflect.Map:
		for in := v.MapRange(); in.Next(); {
			n += compileMicros(in.Value())
		}
	}
	return n
}

func textMicros(name, text string) int64 {
	size := int64(len(text))
	switch name {
	case "Rule", "Expression", "MessageExpression", "ValueExpression":
		return expressionMicros + size*size/squaresPerMicro
	case "Pattern":
		return size/patternPerMicro + repeatMicros*int64(strings.Count(text, "{"))
	}
	return 0
}
