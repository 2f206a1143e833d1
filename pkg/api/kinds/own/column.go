package own

import (
	"cmp"
	"fmt"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Column is a column of kubectl get.
type Column[P client.Object] struct {
	Name, About string
	// Type is the type of the values, as in OpenAPI; empty means string, to which values are converted.
	Type, Format string
	// Wide columns are shown only with -o wide.
	Wide bool
	// Cell returns the value of an object. A column without it is only for API servers on which the kind is a custom
	// resource.
	Cell func(P) any
	// Path is the JSON path by which such servers print the column, PathType its type if that differs. A column
	// without a path is not for them.
	Path, PathType string
}

// AgeColumn returns the column of an object's age.
func AgeColumn[P client.Object]() Column[P] {
	return Column[P]{
		Name: "Age", About: "Time since its creation", Path: ".metadata.creationTimestamp", PathType: "date",
		Cell: func(o P) any { return Ago(new(o.GetCreationTimestamp()), "<unknown>") },
	}
}

// Ago returns the age of t in the form of kubectl get, or the text none if t is nil or zero.
func Ago(t *metav1.Time, none string) string {
	if t.IsZero() {
		return none
	}
	return duration.HumanDuration(time.Since(t.Time))
}

// tableOf returns the function that prints an object. The first column is its name.
func tableOf[P client.Object](columns []Column[P]) func(o client.Object, headers bool) (*metav1.Table, error) {
	definitions := []metav1.TableColumnDefinition{
		{Name: "Name", Type: "string", Format: "name", Description: metav1.ObjectMeta{}.SwaggerDoc()["name"]},
	}
	for _, c := range columns {
		if c.Cell != nil {
			definitions = append(definitions, metav1.TableColumnDefinition{
				Name: c.Name, Type: cmp.Or(c.Type, "string"), Format: c.Format, Description: c.About, Priority: priority(c.Wide),
			})
		}
	}
	return func(o client.Object, headers bool) (*metav1.Table, error) {
		cells := append(make([]any, 0, len(definitions)), o.GetName())
		for _, c := range columns {
			switch {
			case c.Cell == nil:
			case c.Type == "":
				cells = append(cells, fmt.Sprint(c.Cell(o.(P))))
			default:
				cells = append(cells, c.Cell(o.(P)))
			}
		}
		t := &metav1.Table{Rows: []metav1.TableRow{{Cells: cells}}}
		if headers {
			t.ColumnDefinitions = definitions
		}
		return t, nil
	}
}

// printed returns the columns of a CustomResourceDefinition.
func printed[P client.Object](columns []Column[P]) (list []apiextensionsv1.CustomResourceColumnDefinition) {
	for _, c := range columns {
		if c.Path != "" {
			list = append(list, apiextensionsv1.CustomResourceColumnDefinition{
				Name: c.Name, Type: cmp.Or(c.PathType, c.Type, "string"), Description: c.About, Priority: priority(c.Wide),
				JSONPath: c.Path,
			})
		}
	}
	return list
}

func priority(wide bool) int32 {
	if wide {
		return 1
	}
	return 0
}
