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

// TypeChecks returns upstream's type checker of validating admission policies: it compiles their expressions against
// the schemas of at most ten kinds that each rule matches, and of the parameters, and returns upstream's warnings. It
// makes its CEL environment when it is called.
func TypeChecks(c client.Interface, kinds *kind.Catalog,
	schemas Schemas) func(*admissionregistrationv1.ValidatingAdmissionPolicy) []admissionregistrationv1.ExpressionWarning {
	documents := presentDocuments{kinds: kinds, schemas: schemas}
	checker := &validating.TypeChecker{
		SchemaResolver: &resolver.ClientDiscoveryResolver{Discovery: documents}, RestMapper: currentMapper{c},
	}
	return checker.Check
}

// presentDocuments is the discovery client of the type checker, without HTTP.
type presentDocuments struct {
	discovery.DiscoveryInterface
	kinds   *kind.Catalog
	schemas Schemas
}

// OpenAPIV3 implements discovery.OpenAPIV3SchemaInterface.
func (d presentDocuments) OpenAPIV3() openapi.Client { return d }

// Paths implements openapi.Client.
func (d presentDocuments) Paths() (map[string]openapi.GroupVersion, error) {
	return documentsOf(d.kinds.Table(), d.schemas), nil
}
