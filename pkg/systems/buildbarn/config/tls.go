package config

import (
	"fmt"
	"slices"
	"strings"

	buildbarn "github.com/coracle-dev/coracle/apis/buildbarn/v1alpha1"
)

// Trust holds the keys by which the programs of a farm with TLS verify each other.
type Trust struct {
	// Authorities are certificates in PEM format.
	Authorities string
	// TokenKeys is a JSON Web Key Set.
	TokenKeys map[string]any
}

// The roles in a farm. A certificate has one role, as the last component of its URI.
const (
	RoleScheduler = "scheduler"
	RoleStorage   = "storage"
	RoleFrontend  = "frontend"
	RoleWorker    = "worker"
	RoleBrowser   = "browser"
	RoleClient    = "client"   // a client of the frontend
	RoleOperator  = "operator" // drains workers
)

// Identity returns the URI in the certificates of a role.
func Identity(b *buildbarn.Buildbarn, role string) string {
	return fmt.Sprintf("buildbarn://%s/%s/%s", b.Namespace, b.Name, role)
}

// AuthorityOf returns the name of the Secret with a farm's certificate authority.
func AuthorityOf(farm string) string { return farm + "-ca" }

// TLSOf returns the name of the Secret with the serving certificate of a farm's part.
func TLSOf(part string) string { return part + "-tls" }

// ClientOf returns the name of the Secret with the certificate of a farm's clients.
func ClientOf(farm string) string { return farm + "-client-tls" }

// OperatorOf returns the name of the Secret with the operator's certificate.
func OperatorOf(farm string) string { return farm + "-operator-tls" }

// keyPair returns the files of the program's certificate. The program reloads them when they change.
func keyPair() object {
	return object{
		"files": object{"certificatePath": "/tls/tls.crt", "privateKeyPath": "/tls/tls.key", "refreshInterval": "60s"},
	}
}

// patient makes gRPC retry calls while a server starts, since all parts of a farm may start at once: five attempts in
// about four seconds (gRFC A6). After a failed call the programs wait for a random time of up to five seconds.
var patient = object{
	"methodConfig": []any{object{"name": []any{object{}}, "retryPolicy": object{"maxAttempts": 5, "initialBackoff": "0.4s",
		"maxBackoff": "2s", "backoffMultiplier": 1.6, "retryableStatusCodes": []any{"UNAVAILABLE"}}}},
}

// endpoint returns the client configuration for a server of the farm. A server on a failed node is given up in 30 s.
func (f farm) endpoint(address string) object {
	o := object{"address": address, "defaultServiceConfig": patient,
		"keepalive": object{"time": "20s", "timeout": "10s", "permitWithoutStream": true}}
	if f.trust != nil {
		o["tls"] = object{"serverCertificateAuthorities": authorities, "clientKeyPair": keyPair()}
	}
	return o
}

// serve returns a server that admits certain roles. Without TLS it admits every client; then the cluster's network is
// the boundary.
func (f farm) serve(port int32, roles ...string) []any {
	s := object{"listenAddresses": []any{fmt.Sprintf(":%d", port)}, "authenticationPolicy": allow,
		"keepaliveEnforcementPolicy": object{"minTime": "10s", "permitWithoutStream": true}}
	if f.trust == nil {
		return []any{s}
	}
	s["tls"] = object{"serverKeyPair": keyPair()}
	switch {
	case !slices.Contains(roles, RoleClient):
		s["authenticationPolicy"] = f.certificate(roles...)
	case f.Spec.TLS.Clients == buildbarn.ClientsAuthenticated:
		s["authenticationPolicy"] = object{"any": object{"policies": []any{f.certificate(roles...), f.token()}}}
	}
	return []any{s}
}

// certificate admits clients with a certificate of one of the roles. Authorizers see the role.
func (f farm) certificate(roles ...string) object {
	var one []string
	for _, role := range roles {
		one = append(one, fmt.Sprintf("contains(uris, '%s')", Identity(f.Buildbarn, role)))
	}
	metadata := "`{}`"
	if len(roles) == 1 {
		metadata = fmt.Sprintf(`{"public": {"role": '%s'}}`, roles[0])
	}
	return object{"tlsClientCertificate": object{
		"clientCertificateAuthorities":         authorities,
		"validationJmespathExpression":         object{"expression": strings.Join(one, " || ")},
		"metadataExtractionJmespathExpression": object{"expression": metadata},
	}}
}

func (f farm) token() object {
	return object{"jwt": object{
		"jwksInline": f.trust.TokenKeys, "maximumCacheSize": 1000, "cacheReplacementPolicy": "LEAST_RECENTLY_USED",
		"claimsValidationJmespathExpression": object{
			"expression": fmt.Sprintf("payload.sub == '%s'", Identity(f.Buildbarn, RoleClient)),
		},
		"metadataExtractionJmespathExpression": object{"expression": "`{}`"},
	}}
}

// operate is the policy for draining workers and killing operations. With TLS it admits only the operator, and so not
// the users of the scheduler's page.
func (f farm) operate() object {
	if f.trust == nil {
		return allow
	}
	return object{
		"jmespathExpression": object{"expression": fmt.Sprintf("authenticationMetadata.public.role == '%s'", RoleOperator)},
	}
}
