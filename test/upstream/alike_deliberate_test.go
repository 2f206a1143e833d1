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
		"upstream's router words it; application/* matches JSON (RFC 9110, section 12.5.1)"),
	differs(``, `^body.message: upstream "415: Unsupported Media Type"`, "upstream's router words it"),
	differs(``, `^body.message: upstream "the body of the request was in an unknown format`,
		"ours names the type that was sent"),
	differs(``, `^body.message: upstream ".*in scheme \\"pkg/runtime/scheme.go`, "a place in upstream's source"),
	differs(`: (delete|patch) `, `^body.message: upstream "(couldn't get version/kind; )?json( parse error)?: `,
		"the decoder's words"),
	differs(`: patch `, `^body.message: upstream "(invalid JSON patch|error (strict )?(decoding|encoding) patch)`,
		"the decoder's words"),
	differs(`: patch |: merge |: status`,
		`^body\.(message|details.causes\[0\].message): upstream "[^"]*(\\"\\" is invalid: patch: )?Invalid value: `,
		"what a patch made of the object is shown as it is encoded here, and differs in revisions"),
	differs(``, `^body.message: upstream "you requested PartialObjectMetadata`, "a Go type"),
	differs(`: put with another uid|: update of another uid|: put another uid`,
		`^body.message: .*StorageError: invalid object`, "upstream shows the key in its store"),
	differs(`^reviews: `, `^body\.(message: upstream "\.authorization.k8s.io|details.kind: upstream nothing)`,
		"upstream's error does not say of which kind the review is"),
	differs(`: list resourceVersion=x&`, `^body.message: upstream "invalid continue token`,
		"both options are wrong, and another one is named"),
	// Kinds and servers that differ.
	differs(`^discovery: `, `^body\.(groups|resources|items)\S*: upstream nothing, Coracle `,
		"Coracle has kinds and subresources of its own"),
	differs(`^paths: GET /$`, `^body\.paths`, "Coracle has kinds and health checks of its own, and not upstream's"),
	differs(`^paths: (POST|PUT|PATCH|DELETE) /(debug/pprof|openapi/v3)/nonsense`, `^code: upstream 404 , Coracle 405`,
		"a method that none of the paths below has"),
	differs(`^discovery: `, `^body.apiVersion: upstream nothing`, "the core group's lists have a version too"),
	differs(`^discovery: /apis/ `, `^code: upstream 406 .*, Coracle 200 `,
		"discovery negotiates with a slash behind the path too"),
	differs(`^discovery: (POST|PUT|DELETE|OPTIONS) /apis`, `^code: upstream 200 , Coracle 405 `, "discovery is read"),
	differs(`^paths: (POST|PUT|PATCH|DELETE) /$`, `^code: upstream 200 , Coracle 405`, "the list of paths is read"),
	differs(`^paths: .*/componentstatuses/nonsense`, `^header Warning`, "the kind is deprecated, whatever the method"),
	differs(`^paths: .*/namespaces//configmaps`, `^(body\.items|code: upstream 400 .*, Coracle 405)`,
		"upstream has objects of its own there"),
	differs(`^paths: GET /version`, `^body\.git`, "another build"),
	differs(`^paths: HEAD /(version|openid|\.well-known)`, `^code: upstream 405 , Coracle 200`,
		"what answers a GET answers a HEAD"),
	differs(`^paths: (GET|HEAD) /openapi/v3/nonsense`, `^(body|header Content-Type): upstream nothing`,
		"what is not found says so"),
	differs(`^paths: GET /(openid/v1/jwks|readyz)`, `^body: `, "another key, and other checks"),
	differs(`^reviews: |^pods: a token`, `^body.metadata\.`, "what is not stored has no managed fields"),
	differs(`^pods: log`, `^body.details.(kind|name|group)`, "the error is about the node that the pod is not on"),
	differs(`^fields: .*componentstatuses`, `.`, "component statuses are computed"),
	differs(`^fields: delete /apis/harbour`, `^code: upstream 404`,
		"collections are deleted in one namespace, whatever the kind"),
	differs(`^discovery: `, `^body(:|\.apiVersion|\.groupVersion|\.kind)`,
		"the core group's lists have a version, without which upstream's protobuf cannot be decoded, and /apis/ is /apis"),
	differs(`^users: may read the version`, `^body.git`, "another build"),
	differs(`^users: a binding to a missing role`, `^body\.(details.kind|message)`,
		"the error names the role that is missing, not a binding"),
	differs(`^users: impersonates a node`, `^body.message: `, "the node authorizer's words"),
	// Watches and lists.
	differs(`: watch `, `^body'+\.object\.(rows|spec\.replicas)`,
		"the bookmark at the end of the initial events has a revision, and nothing of an object"),
	differs(`: watch $`, `^body'*\.(type|object)`,
		"a watch for a PartialObjectMetadataList has what one for PartialObjectMetadata has; upstream's ends"),
	differs(`: watch $`, `^body.message: upstream "only the following`, "a watch names the types of streams"),
	differs(`^namespaces v1: list `, `^(body.metadata.continue|code|body.message)`,
		"no more of what is selected follows: then there is no token to go on with"),
	differs(`: list resourceVersion=x&`, `^body.message: upstream "specifying resource version`,
		"both options are wrong, and another one is named"),
	differs(`^pods v1: list resourceVersion=0&`, `^body\.`, "a limit holds for lists of the cache too"),
	// Subresources.
	differs(`: (ephemeralcontainers|resize|scale): get (a table|for protobuf)`, `^code: upstream 406 .*, Coracle 200`,
		"a form that upstream does not have"),
	differs(`: scale: |^scale: deployments|^pods: evict with another kind`,
		`^body\.(message|details.kind): upstream "(\w+ in version .*unknown conversion"|deployments")`,
		"ours names the version that does not fit"),
	differs(`^pods: bind to a pod`, `^code: upstream 500`, "a bad target is the client's error"),
	differs(`^pods: (bind|evict) with another uid`, `^body\.(message|details.kind)`, "the words of a precondition"),
	differs(`^pods: (exec|log) `, `^(code: upstream 404 |body.message: upstream )"pods .* not found"`,
		"what is missing is the node"),
	differs(`^scale: boats/scaled: apply`, `^code: upstream 500 `,
		"upstream's apply to the scale of a custom resource cannot be forced"),
	differs(`^scale: boats/scaled: look`, `^body\.(spec.crew|metadata.generation): `,
		"so what it set is not there upstream"),
	// Deletions and services.
	differs(`: delete (with another revision|all, at a revision)`,
		`^body.message: upstream "Operation cannot be fulfilled on .*([Pp]recondition)`, "the words of a precondition"),
	differs(`^namespaces v1: delete of a broken object`, `^code: upstream 500 `,
		"an object that can be read is not broken: a conflict, as for other kinds"),
	differs(`^services: a node port out of range, dry`, `^code: upstream 201 `, "a dry run finds what the run would"),
	differs(`^services: an address elsewhere`, `(message|causes)`, "the range is named"),
	differs(`^services: `, `^body.spec.internalTrafficPolicy: upstream nothing`,
		"upstream's handler panicked, and left the service in another state"),
	// Custom resources.
	differs(`^boats.*: patch that replaces the whole`, `^code: upstream 422 `,
		"words and code for a patch that leaves nothing"),
	differs(`^discovery: /apis/ `, `^(has Etag|header (Cache-Control|Content-Type)|body\.groups\S*): `,
		"/apis/ is /apis, with aggregated discovery"),
	differs(`^boats.*: patch of the version`, `^body.(details.group|message): `, "the error names the group"),
	differs(`^boats.harbour.example.com v2: let it go`, `^body.spec.second: `,
		"the last state of what is gone has the defaults of the stored version alone"),
	differs(`^boats.*: post on the object`, `^code: upstream 409 `, "a method that a path does not have"),
	differs(`^scale: boats`, `^body\.(details|message|metadata.managedFields)`,
		"errors name the Scale's field, and managers of scale have times"),
	differs(`^boats.*: (put|patch) on the list|^boats.*: get more yet`, `^code: upstream (400|200) `,
		"a method that a path does not have"),
}
