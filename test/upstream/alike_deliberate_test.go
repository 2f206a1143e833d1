package upstream_test

import "regexp"

// known is a difference that is on purpose, or that does not matter to clients.
type known struct {
	// in matches the case ("configmaps v1: get"), is the difference ("code: upstream 200 , Coracle 404 text").
	in, is *regexp.Regexp
	why    string
}

func differs(in, is, why string) known {
	return known{regexp.MustCompile(in), regexp.MustCompile(is), why}
}

// deliberate lists all known differences. A run of all cases fails if one of them no longer occurs.
var deliberate = []known{
	// Coracle reports an error in the request, where upstream reports an internal error.
	differs(``, `^code: upstream 0 no answer, Coracle 4`, "upstream's handler panics"),
	differs(``, `^code: upstream 500 .*resourceVersion: Invalid value.*, Coracle 400`,
		"a bad revision in a query is the client's error"),
	differs(``, `^code: upstream 500 "strconv.ParseUint: parsing .*, Coracle (422|400)`,
		"a bad revision in an object is the client's error"),
	differs(``, `^code: upstream 500 "failed to create typed patch object.*, Coracle 400`,
		"an apply that does not fit the schema is a bad request (README)"),
	differs(``, `^code: upstream 500 "(unknown patch type|target.name: Required value|content is not a list)`,
		"a malformed patch, binding or Accept header is the client's error"),
	differs(`^paths: `, `^code: upstream 500 , Coracle 400 (\"unable to determine kind|$)`,
		"a path that cannot be parsed is the client's error"),
	// Messages with the same meaning, but without upstream's source locations and Go types, or with more about the
	// accepted values.
	differs(``, `^(body.message|code): upstream (406 )?"406: Not Acceptable`,
		"the message of upstream's router; application/* matches JSON (RFC 9110, section 12.5.1)"),
	differs(``, `^body.message: upstream "415: Unsupported Media Type"`, "the message of upstream's router"),
	differs(``, `^body.message: upstream "the body of the request was in an unknown format`,
		"Coracle's message names the type that was sent"),
	differs(``, `^body.message: upstream ".*in scheme \\"pkg/runtime/scheme.go`, "a location in upstream's source"),
	differs(`: (delete|patch) `, `^body.message: upstream "(couldn't get version/kind; )?json( parse error)?: `,
		"the decoder's message"),
	differs(`: patch `, `^body.message: upstream "(invalid JSON patch|error (strict )?(decoding|encoding) patch)`,
		"the decoder's message"),
	differs(`: patch |: merge |: status`,
		`^body\.(message|details.causes\[0\].message): upstream "[^"]*(\\"\\" is invalid: patch: )?Invalid value: `,
		"the message shows the patched object in Coracle's encoding and with its revisions"),
	differs(``, `^body.message: upstream "you requested PartialObjectMetadata`, "a Go type"),
	differs(`: put with another uid|: update of another uid|: put another uid`,
		`^body.message: .*StorageError: invalid object`, "upstream's message contains the key in its store"),
	differs(`^reviews: `, `^body\.(message: upstream "\.authorization.k8s.io|details.kind: upstream nothing)`,
		"upstream's error does not name the kind of the review"),
	differs(`: list resourceVersion=x&`, `^body.message: upstream "invalid continue token`,
		"both options are wrong, and the servers name different ones"),
	// Kinds and servers that differ.
	differs(`^discovery: `, `^body\.(groups|resources|items)\S*: upstream nothing, Coracle `,
		"Coracle has additional kinds and subresources"),
	differs(`^paths: GET /$`, `^body\.paths`, "Coracle has other kinds and health checks than upstream"),
	differs(`^paths: (POST|PUT|PATCH|DELETE) /(debug/pprof|openapi/v3)/nonsense`, `^code: upstream 404 , Coracle 405`,
		"no path below supports the method"),
	differs(`^discovery: `, `^body.apiVersion: upstream nothing`, "the core group's lists have a version too"),
	differs(`^discovery: /apis/ `, `^code: upstream 406 .*, Coracle 200 `,
		"discovery negotiates even with a trailing slash"),
	differs(`^discovery: (POST|PUT|DELETE|OPTIONS) /apis`, `^code: upstream 200 , Coracle 405 `, "discovery is read-only"),
	differs(`^paths: (POST|PUT|PATCH|DELETE) /$`, `^code: upstream 200 , Coracle 405`, "the list of paths is read-only"),
	differs(`^paths: .*/componentstatuses/nonsense`, `^header Warning`, "the kind is deprecated, whatever the method"),
	differs(`^paths: .*/namespaces//configmaps`, `^(body\.items|code: upstream 400 .*, Coracle 405)`,
		"upstream has other objects there"),
	differs(`^paths: GET /version`, `^body\.git`, "another build"),
	differs(`^paths: HEAD /(version|openid|\.well-known)`, `^code: upstream 405 , Coracle 200`,
		"HEAD is supported wherever GET is"),
	differs(`^paths: (GET|HEAD) /openapi/v3/nonsense`, `^(body|header Content-Type): upstream nothing`,
		"a 404 has a body"),
	differs(`^paths: GET /(openid/v1/jwks|readyz)`, `^body: `, "another key, and other checks"),
	differs(`^reviews: |^pods: a token`, `^body.metadata\.`, "objects that are not stored have no managed fields"),
	differs(`^pods: log`, `^body.details.(kind|name|group)`, "the error is that the pod is on no node"),
	differs(`^fields: .*componentstatuses`, `.`, "component statuses are computed"),
	differs(`^fields: delete /apis/harbour`, `^code: upstream 404`,
		"a collection of any kind can only be deleted in one namespace"),
	differs(`^discovery: `, `^body(:|\.apiVersion|\.groupVersion|\.kind)`,
		"the core group's lists have a version, without which upstream's protobuf cannot be decoded, and /apis/ is /apis"),
	differs(`^users: may read the version`, `^body.git`, "another build"),
	differs(`^users: a binding to a missing role`, `^body\.(details.kind|message)`,
		"the error names the missing role, not a binding"),
	differs(`^users: impersonates a node`, `^body.message: `, "the node authorizer's message"),
	// Watches and lists.
	differs(`: watch `, `^body'+\.object\.(rows|spec\.replicas)`,
		"the bookmark after the initial events has only a revision"),
	differs(`: watch $`, `^body'*\.(type|object)`,
		"a watch for a PartialObjectMetadataList sends PartialObjectMetadata; upstream's ends"),
	differs(`: watch $`, `^body.message: upstream "only the following`, "Coracle's message names the types of streams"),
	differs(`^namespaces v1: list `, `^(body.metadata.continue|code|body.message)`,
		"no further object matches, so the list has no continue token"),
	differs(`: list resourceVersion=x&`, `^body.message: upstream "specifying resource version`,
		"both options are wrong, and the servers name different ones"),
	differs(`^pods v1: list resourceVersion=0&`, `^body\.`, "limit applies to lists from the cache too"),
	// Subresources.
	differs(`: (ephemeralcontainers|resize|scale): get (a table|for protobuf)`, `^code: upstream 406 .*, Coracle 200`,
		"an encoding that upstream does not support"),
	differs(`: scale: |^scale: deployments|^pods: evict with another kind`,
		`^body\.(message|details.kind): upstream "(\w+ in version .*unknown conversion"|deployments")`,
		"Coracle's message names the wrong version"),
	differs(`^pods: bind to a pod`, `^code: upstream 500`, "a bad target is the client's error"),
	differs(`^pods: (bind|evict) with another uid`, `^body\.(message|details.kind)`,
		"the message of a failed precondition"),
	differs(`^pods: (exec|log) `, `^(code: upstream 404 |body.message: upstream )"pods .* not found"`,
		"the node is missing, not the pod"),
	differs(`^scale: boats/scaled: apply`, `^code: upstream 500 `,
		"upstream's apply to the scale of a custom resource cannot be forced"),
	differs(`^scale: boats/scaled: look`, `^body\.(spec.crew|metadata.generation): `,
		"upstream refused the apply before, so its fields are missing"),
	// Deletions and services.
	differs(`: delete (with another revision|all, at a revision)`,
		`^body.message: upstream "Operation cannot be fulfilled on .*([Pp]recondition)`,
		"the message of a failed precondition"),
	differs(`^namespaces v1: delete of a broken object`, `^code: upstream 500 `,
		"an object that can be read is not broken: a conflict, as for other kinds"),
	differs(`^services: a node port out of range, dry`, `^code: upstream 201 `,
		"a dry run reports the same error as a real request"),
	differs(`^services: an address elsewhere`, `(message|causes)`, "Coracle's message names the range"),
	differs(`^services: `, `^body.spec.internalTrafficPolicy: upstream nothing`,
		"upstream's handler panicked, and left the service in another state"),
	// Custom resources.
	differs(`^boats.*: patch that replaces the whole`, `^code: upstream 422 `,
		"message and code for a patch that removes the whole object"),
	differs(`^discovery: /apis/ `, `^(has Etag|header (Cache-Control|Content-Type)|body\.groups\S*): `,
		"/apis/ is /apis, with aggregated discovery"),
	differs(`^boats.*: patch of the version`, `^body.(details.group|message): `, "the error names the group"),
	differs(`^boats.harbour.example.com v2: let it go`, `^body.spec.second: `,
		"the last state of a deleted object has only the defaults of the stored version"),
	differs(`^boats.*: post on the object`, `^code: upstream 409 `, "the path does not support the method"),
	differs(`^scale: boats`, `^body\.(details|message|metadata.managedFields)`,
		"errors name the Scale's field, and managers of scale have times"),
	differs(`^boats.*: (put|patch) on the list|^boats.*: get more yet`, `^code: upstream (400|200) `,
		"the path does not support the method"),
}
