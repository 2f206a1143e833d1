package upstream_test

import "strings"

func podRequests() []exchange {
	j := []string{"Content-Type", jsonType}
	ns := "/api/v1/namespaces/" + space
	binding := func(rest string) string {
		return `{"apiVersion":"v1","kind":"Binding","metadata":{"name":"runner"}` + rest + `}`
	}
	eviction := func(rest string) string {
		return `{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"runner"}` + rest + `}`
	}
	token := func(spec string) string {
		return `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":` + spec + `}`
	}
	return []exchange{
		{"bind without a target", "POST", ns + "/pods/runner/binding", binding(``), j},
		{"bind to nothing", "POST", ns + "/pods/runner/binding", binding(`,"target":{}`), j},
		{"bind to a pod", "POST", ns + "/pods/runner/binding", binding(`,"target":{"kind":"Pod","name":"x"}`), j},
		{"bind to a bad name", "POST", ns + "/pods/runner/binding", binding(`,"target":{"kind":"Node","name":""}`), j},
		{
			"bind another", "POST", ns + "/pods/runner/binding",
			strings.Replace(binding(`,"target":{"kind":"Node","name":"n"}`), "runner", "another", 1), j,
		},
		{
			"bind a missing one", "POST", ns + "/pods/none/binding",
			strings.Replace(binding(`,"target":{"kind":"Node","name":"n"}`), "runner", "none", 1), j,
		},
		{"bind, dry", "POST", ns + "/pods/runner/binding?dryRun=All", binding(`,"target":{"kind":"Node","name":"n"}`), j},
		{
			"bind with another uid", "POST", ns + "/pods/runner/binding",
			`{"apiVersion":"v1","kind":"Binding","metadata":{"name":"runner","uid":"11111111-2222-3333-4444-555555555555"},"target":{"kind":"Node","name":"n"}}`, j,
		},
		{"bind with bindings", "POST", ns + "/bindings", binding(`,"target":{"kind":"Node","name":"n"}`), j},
		{"bind again", "POST", ns + "/pods/runner/binding", binding(`,"target":{"kind":"Node","name":"n"}`), j},
		{"bind elsewhere", "POST", ns + "/pods/runner/binding", binding(`,"target":{"kind":"Node","name":"m"}`), j},
		{"get bindings", "GET", ns + "/bindings", "", nil},
		{"get a binding", "GET", ns + "/pods/runner/binding", "", nil},
		{"evict, dry", "POST", ns + "/pods/runner/eviction?dryRun=All", eviction(``), j},
		{"evict, dry in the body", "POST", ns + "/pods/runner/eviction", eviction(`,"deleteOptions":{"dryRun":["All"]}`), j},
		{
			"evict with another uid", "POST", ns + "/pods/runner/eviction",
			eviction(`,"deleteOptions":{"preconditions":{"uid":"x"}}`), j,
		},
		{"evict another", "POST", ns + "/pods/placed/eviction", eviction(``), j},
		{"evict a missing one", "POST", ns + "/pods/none/eviction", strings.Replace(eviction(``), "runner", "none", 1), j},
		{"evict with nothing", "POST", ns + "/pods/runner/eviction", ``, j},
		{"evict with another kind", "POST", ns + "/pods/runner/eviction", binding(``), j},
		{"log of an unplaced pod", "GET", ns + "/pods/runner/log", "", nil},
		{"log with a bad tail", "GET", ns + "/pods/runner/log?tailLines=-1", "", nil},
		{"log of a missing container", "GET", ns + "/pods/placed/log?container=none", "", nil},
		{"log of a missing node", "GET", ns + "/pods/placed/log", "", nil},
		{"log of a missing pod", "GET", ns + "/pods/none/log", "", nil},
		{"log with both sinces", "GET", ns + "/pods/placed/log?sinceSeconds=1&sinceTime=2020-01-01T00:00:00Z", "", nil},
		{"exec without a command", "POST", ns + "/pods/placed/exec", "", nil},
		{"exec in a missing container", "POST", ns + "/pods/placed/exec?command=x&container=none&stdout=1", "", nil},
		{"exec in a missing pod", "POST", ns + "/pods/none/exec?command=x&stdout=1", "", nil},
		{"attach to a missing pod", "POST", ns + "/pods/none/attach", "", nil},
		{"attach by put", "PUT", ns + "/pods/placed/attach", "", nil},
		{"forward to a missing pod", "POST", ns + "/pods/none/portforward", "", nil},
		{
			"update a pod's image",
			"PATCH",
			ns + "/pods/placed",
			`{"spec":{"containers":[{"name":"main","image":"other"}]}}`,
			[]string{"Content-Type", strategic},
		},
		{
			"update a pod's command",
			"PATCH",
			ns + "/pods/placed",
			`{"spec":{"containers":[{"name":"main","command":["x"]}]}}`,
			[]string{"Content-Type", strategic},
		},
		{
			"update a pod's status",
			"PATCH",
			ns + "/pods/placed/status",
			`{"status":{"phase":"Running","podIPs":[{"ip":"10.1.2.3"}],"podIP":"10.1.2.3"}}`,
			[]string{"Content-Type", strategic},
		},
		{
			"a bad phase",
			"PATCH",
			ns + "/pods/placed/status",
			`{"status":{"phase":"Nonsense"}}`,
			[]string{"Content-Type", strategic},
		},
		{
			"resize",
			"PATCH",
			ns + "/pods/placed/resize",
			`{"spec":{"containers":[{"name":"main","resources":{"requests":{"cpu":"1"}}}]}}`,
			[]string{"Content-Type", strategic},
		},
		{
			"add an ephemeral container",
			"PATCH",
			ns + "/pods/placed/ephemeralcontainers?dryRun=All",
			`{"spec":{"ephemeralContainers":[{"name":"debug","image":"busybox"}]}}`,
			[]string{"Content-Type", strategic},
		},
		{"a token", "POST", ns + "/serviceaccounts/robot/token", token(`{"audiences":["a"],"expirationSeconds":600}`), j},
		{"a short token", "POST", ns + "/serviceaccounts/robot/token", token(`{"expirationSeconds":1}`), j},
		{"a long token", "POST", ns + "/serviceaccounts/robot/token", token(`{"expirationSeconds":99999999999}`), j},
		{"a token of a missing account", "POST", ns + "/serviceaccounts/none/token", token(`{}`), j},
		{
			"a token bound to a missing pod", "POST", ns + "/serviceaccounts/robot/token",
			token(`{"boundObjectRef":{"kind":"Pod","apiVersion":"v1","name":"none"}}`), j,
		},
		{
			"a token bound to another kind", "POST", ns + "/serviceaccounts/robot/token",
			token(`{"boundObjectRef":{"kind":"ConfigMap","apiVersion":"v1","name":"none"}}`), j,
		},
		{"a token, dry", "POST", ns + "/serviceaccounts/robot/token?dryRun=All", token(`{"audiences":["a"]}`), j},
		{"get a token", "GET", ns + "/serviceaccounts/robot/token", "", nil},
		{"delete gracefully", "DELETE", ns + "/pods/placed", "", nil},
		{"delete sooner", "DELETE", ns + "/pods/placed?gracePeriodSeconds=5", "", nil},
		{"delete later", "DELETE", ns + "/pods/placed?gracePeriodSeconds=500", "", nil},
		{"delete at once", "DELETE", ns + "/pods/placed?gracePeriodSeconds=0", "", nil},
		{"evict", "POST", ns + "/pods/runner/eviction", eviction(``), j},
	}
}

func scales() (all []exchange) {
	at := "/apis/apps/v1/namespaces/" + space + "/deployments/scaled"
	all = append(all,
		exchange{
			"create",
			"POST",
			"/apis/apps/v1/namespaces/" + space + "/deployments",
			`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"scaled"},"spec":{"replicas":2,"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}`,
			[]string{"Content-Type", jsonType},
		},
		exchange{
			"create a boat",
			"POST",
			boatsPath,
			boat("v1", "scaled", `,"spec":{"colour":"red"}`),
			[]string{"Content-Type", jsonType},
		})
	for _, on := range []string{at, boatsPath + "/scaled", newerBoats + "/scaled"} {
		scale := func(name, rest string) string {
			return `{"apiVersion":"autoscaling/v1","kind":"Scale","metadata":{"name":"` + name + `","namespace":"` + space +
				`"` + rest + `}`
		}
		for _, x := range []exchange{
			{"get", "GET", on + "/scale", "", nil},
			{"get missing", "GET", on + "-none/scale", "", nil},
			{"get a table", "GET", on + "/scale", "", []string{"Accept", "application/json;as=Table;v=v1;g=meta.k8s.io"}},
			{"put", "PUT", on + "/scale", scale("scaled", `},"spec":{"replicas":3}`), []string{"Content-Type", jsonType}},
			{
				"put less than none",
				"PUT",
				on + "/scale",
				scale("scaled", `},"spec":{"replicas":-1}`),
				[]string{"Content-Type", jsonType},
			},
			{
				"put another name",
				"PUT",
				on + "/scale",
				scale("other", `},"spec":{"replicas":3}`),
				[]string{"Content-Type", jsonType},
			},
			{
				"put an old revision",
				"PUT",
				on + "/scale",
				scale("scaled", `,"resourceVersion":"1"},"spec":{"replicas":3}`),
				[]string{"Content-Type", jsonType},
			},
			{
				"put its revision",
				"PUT",
				on + "/scale",
				scale("scaled", `,"resourceVersion":"$RV"},"spec":{"replicas":4}`),
				[]string{"Content-Type", jsonType},
			},
			{
				"put another uid",
				"PUT",
				on + "/scale",
				scale("scaled", `,"uid":"11111111-2222-3333-4444-555555555555"},"spec":{"replicas":3}`),
				[]string{"Content-Type", jsonType},
			},
			{
				"put another kind",
				"PUT",
				on + "/scale",
				`{"kind":"Deployment","apiVersion":"apps/v1"}`,
				[]string{"Content-Type", jsonType},
			},
			{
				"put missing",
				"PUT",
				on + "-none/scale",
				scale("scaled-none", `},"spec":{"replicas":3}`),
				[]string{"Content-Type", jsonType},
			},
			{"merge", "PATCH", on + "/scale?fieldManager=s", `{"spec":{"replicas":5}}`, []string{"Content-Type", merge}},
			{"merge a text", "PATCH", on + "/scale", `{"spec":{"replicas":"x"}}`, []string{"Content-Type", merge}},
			{"merge less than none", "PATCH", on + "/scale", `{"spec":{"replicas":-2}}`, []string{"Content-Type", merge}},
			{
				"merge strategically",
				"PATCH",
				on + "/scale?dryRun=All",
				`{"spec":{"replicas":6}}`,
				[]string{"Content-Type", strategic},
			},
			{
				"merge nonsense",
				"PATCH",
				on + "/scale?fieldValidation=Strict",
				`{"spec":{"nonsense":6}}`,
				[]string{"Content-Type", merge},
			},
			{
				"apply",
				"PATCH",
				on + "/scale?fieldManager=applier",
				scale("scaled", `},"spec":{"replicas":7}`),
				[]string{"Content-Type", apply},
			},
			{
				"apply with force",
				"PATCH",
				on + "/scale?fieldManager=applier&force=true",
				scale("scaled", `},"spec":{"replicas":7}`),
				[]string{"Content-Type", apply},
			},
			{"post", "POST", on + "/scale", "{}", []string{"Content-Type", jsonType}},
			{"delete", "DELETE", on + "/scale", "", nil},
			{"look", "GET", on, "", nil},
		} {
			x.what = on[strings.LastIndex(on[:len(on)-7], "/")+1:] + ": " + x.what
			all = append(all, x)
		}
	}
	return append(all, exchange{"delete the boat", "DELETE", boatsPath + "/scaled", "", nil},
		exchange{"delete it", "DELETE", at, "", nil})
}

// fieldSelectors are lists by every field that upstream selects by, on every kind with such fields and on some without.
