package admission

import (
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/cel/openapi/resolver"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/openapi"

	"github.com/coracle-dev/coracle/pkg/client"
	"github.com/coracle-dev/coracle/pkg/kind"
)

// TypeChecks returns upstream's type checker of validating admission policies. It compiles their expressions against
// the schemas of the parameters and of at most ten kinds that each rule matches, and returns warnings. It creates a
// CEL environment at each call.
func TypeChecks(c client.Interface, kinds *kind.Catalog,
	schemas Schemas) func(*admissionregistrationv1.ValidatingAdmissionPolicy) []admissionregistrationv1.ExpressionWarning {
	documents := presentDocuments{kinds: kinds, schemas: schemas}
	checker := &validating.TypeChecker{
		SchemaResolver: &resolver.ClientDiscoveryResolver{Discovery: documents}, RestMapper: currentMapper{c},
	}
	return checker.Check
}

// presentDocuments is the type checker's discovery client, without HTTP.
type presentDocuments struct {
	discovery.DiscoveryInterface
	kinds   *kind.Catalog
	schemas Schemas
}

func (d presentDocuments) OpenAPIV3() openapi.Client { return d }

// Paths implements openapi.Client.
func (d presentDocuments) Paths() (map[string]openapi.GroupVersion, error) {
	return documentsOf(d.kinds.Table(), d.schemas), nil
}
