package v1alpha1

import (
	"fmt"
	"reflect"
	"strings"
)

// Values returns the options of the control plane by their names, as text. None of them is a secret: those are in
// files.
func (s Server) Values() map[string]string {
	values := map[string]string{}
	collect(values, reflect.ValueOf(s))
	return values
}

func collect(values map[string]string, v reflect.Value) {
	for i := range v.NumField() {
		f, value := v.Type().Field(i), v.Field(i)
		switch list, isList := value.Interface().([]string); {
		case f.Anonymous:
			collect(values, value)
		case isList:
			values[f.Tag.Get("mapstructure")] = strings.Join(list, ",")
		default:
			values[f.Tag.Get("mapstructure")] = fmt.Sprint(value.Interface())
		}
	}
}
