package builtin

import (
	"fmt"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/install"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	generated "k8s.io/kube-aggregator/pkg/generated/openapi"
	"k8s.io/kube-aggregator/pkg/registry/apiservice"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/coracle-dev/coracle/pkg/api/kinds/own"
	"github.com/coracle-dev/coracle/pkg/kind"
)

// registrations is upstream's scheme of APIService, which its main scheme does not have.
var registrations = sync.OnceValue(func() *runtime.Scheme {
	s := runtime.NewScheme()
	install.Install(s)
	return s
})

// apiServiceRows returns the row of APIService. As upstream, its objects are stored as JSON, with keys below the
// group's name.
func apiServiceRows() []*kind.Resource {
	strategy, ok := apiservice.NewStrategy(registrations()).(kind.Strategy)
	if !ok {
		panic("upstream's strategy of APIService cannot delete")
	}
	group := apiregistrationv1.SchemeGroupVersion
	r := row[apiregistrationv1.APIService, apiregistrationv1.APIServiceList](group, "apiservices", "apiservice", strategy,
		metaFields)
	r.Keys, r.StoredJSON, r.Categories = group.Group+"/apiservices", true, []string{"api-extensions"}
	r.Status = apiservice.NewStatusStrategy(registrations())
	r.Managers = registrationManagers
	r.Default = registrations().Default
	r.Internal = func(o client.Object) (runtime.Object, error) {
		return registrations().UnsafeConvertToVersion(o, apiregistration.SchemeGroupVersion)
	}
	r.External = func(o runtime.Object) (client.Object, error) {
		out, err := registrations().UnsafeConvertToVersion(o, group)
		if err != nil {
			return nil, err
		}
		external, ok := out.(*apiregistrationv1.APIService)
		if !ok {
			return nil, fmt.Errorf("%T is not an APIService", out)
		}
		external.SetGroupVersionKind(r.GroupVersionKind)
		return external, nil
	}
	r.Table = &kind.Printer{Row: r, Print: printAPIService}
	return []*kind.Resource{r}
}

// registrationManagers creates the field manager of APIServices or of their status. client-go's schema does not have
// the kind.
func registrationManagers(subresource string,
	reset map[fieldpath.APIVersion]fieldpath.Filter) (*managedfields.FieldManager, error) {
	types, err := registrationTypes()
	if err != nil {
		return nil, err
	}
	s, gvk := registrations(), apiregistrationv1.SchemeGroupVersion.WithKind("APIService")
	return managedfields.NewDefaultFieldManager(types, s, s, s, gvk, gvk.GroupVersion(), subresource, reset)
}

var registrationTypes = sync.OnceValues(func() (managedfields.TypeConverter, error) {
	return own.GeneratedTypes(generated.GetOpenAPIDefinitions, apiregistrationv1.APIService{}.OpenAPIModelName(),
		apiregistrationv1.SchemeGroupVersion.WithKind("APIService"))
})

func printAPIService(o client.Object, headers bool) (*metav1.Table, error) {
	// Lists contain the internal version.
	in, err := registrations().UnsafeConvertToVersion(o, apiregistration.SchemeGroupVersion)
	if err != nil {
		return nil, err
	}
	s, ok := in.(*apiregistration.APIService)
	if !ok {
		return nil, fmt.Errorf("%T is not an APIService", o)
	}
	service, available, age := "Local", string(apiregistration.ConditionUnknown), "<unknown>"
	if ref := s.Spec.Service; ref != nil {
		service = ref.Namespace + "/" + ref.Name
	}
	for _, c := range s.Status.Conditions {
		if c.Type != apiregistration.Available {
			continue
		}
		available = string(c.Status)
		if c.Status != apiregistration.ConditionTrue && c.Reason != "" {
			available = fmt.Sprintf("%s (%s)", c.Status, c.Reason)
		}
	}
	if created := s.CreationTimestamp; !created.IsZero() {
		age = duration.HumanDuration(metav1.Now().Sub(created.Time))
	}
	t := &metav1.Table{Rows: []metav1.TableRow{{Cells: []any{s.Name, service, available, age}}}}
	if headers {
		docs := metav1.ObjectMeta{}.SwaggerDoc()
		t.ColumnDefinitions = []metav1.TableColumnDefinition{
			{Name: "Name", Type: "string", Format: "name", Description: docs["name"]},
			{Name: "Service", Type: "string", Description: "The reference to the service that hosts this API endpoint."},
			{Name: "Available", Type: "string", Description: "Whether this service is available."},
			{Name: "Age", Type: "string", Description: docs["creationTimestamp"]},
		}
	}
	return t, nil
}
