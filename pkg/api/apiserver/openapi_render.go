package apiserver

// render renders paths as OpenAPI 2 or 3.
func render(paths map[string]*pathItem, form int) map[string]any {
	out := make(map[string]any, len(paths))
	for path, item := range paths {
		rendered := map[string]any{}
		if len(item.params) > 0 {
			rendered["parameters"] = renderParams(item.params, form)
		}
		for method, op := range item.operations {
			rendered[method] = renderOperation(op, form)
		}
		out[path] = rendered
	}
	return out
}

func renderOperation(op *operation, form int) map[string]any {
	out := map[string]any{"operationId": op.id, "description": op.description, "tags": []string{op.tag}}
	if op.action != "" {
		out["x-kubernetes-action"] = op.action
		out["x-kubernetes-group-version-kind"] = map[string]string{
			"group":   op.kind.Group,
			"version": op.kind.Version,
			"kind":    op.kind.Kind,
		}
	}
	params := renderParams(op.params, form)
	answers := map[string]any{"401": map[string]any{"description": "Unauthorized"}}
	for code, model := range op.answers {
		answers[code] = renderAnswer(code, model, op.produces, form)
	}
	out["responses"] = answers
	if form == 2 {
		out["consumes"], out["produces"], out["schemes"] = op.consumes, op.produces, []string{"https"}
		if op.body != "" {
			body := map[string]any{"name": "body", "in": "body", "schema": refer(op.body, form)}
			if !op.optional {
				body["required"] = true
			}
			params = append([]any{body}, params...)
		}
	} else if op.body != "" {
		content := map[string]any{}
		for _, media := range op.consumes {
			content[media] = map[string]any{"schema": refer(op.body, form)}
		}
		body := map[string]any{"content": content}
		if !op.optional {
			body["required"] = true
		}
		out["requestBody"] = body
	}
	if len(params) > 0 {
		out["parameters"] = params
	}
	return out
}

func renderAnswer(code, model string, produces []string, form int) map[string]any {
	out := map[string]any{"description": map[string]string{"200": "OK", "201": "Created", "202": "Accepted"}[code]}
	if form == 2 {
		out["schema"] = refer(model, form)
		return out
	}
	content := map[string]any{}
	for _, media := range produces {
		content[media] = map[string]any{"schema": refer(model, form)}
	}
	out["content"] = content
	return out
}

// refer returns a reference to a definition, or a string schema if model is empty.
func refer(model string, form int) map[string]any {
	switch {
	case model == "":
		return map[string]any{"type": "string"}
	case form == 2:
		return map[string]any{"$ref": "#/definitions/" + model}
	default:
		return map[string]any{"$ref": "#/components/schemas/" + model}
	}
}

func renderParams(params []parameter, form int) []any {
	out := make([]any, 0, len(params))
	for _, p := range params {
		one := map[string]any{"name": p.name, "in": p.in}
		if p.description != "" {
			one["description"] = p.description
		}
		if p.required {
			one["required"] = true
		}
		if form == 2 {
			one["type"], one["uniqueItems"] = p.typ, true
		} else {
			one["schema"] = map[string]any{"type": p.typ, "uniqueItems": true}
		}
		out = append(out, one)
	}
	return out
}
