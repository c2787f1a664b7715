"""Beam search by transformers, with the smallest margin of all its decisions: a seed whose margin is within rounding makes no fixture."""

import contextlib
import re

import torch
from transformers.generation.utils import GenerationMixin

MARGIN = 1e-4  # of log-probabilities

PLAIN = {"numBeams": 4, "maxNewTokens": 20}
SHORT = {"numBeams": 3, "lengthPenalty": 0.6, "earlyStopping": True, "noRepeatNgramSize": 2, "numReturnSequences": 3, "maxNewTokens": 20}
LONG = {"numBeams": 5, "lengthPenalty": 2.0, "earlyStopping": "never", "minLength": 8, "numReturnSequences": 2, "maxNewTokens": 16}


def snake(options: dict) -> dict:
    """Hugging Face's spelling of camelCase options."""
    return {re.sub(r"[A-Z]", lambda m: "_" + m[0].lower(), k): v for k, v in options.items()}


@contextlib.contextmanager
def margins():
    """Yields a list that collects the margin of every decision of the beam searches inside."""
    found = []
    real = lambda values: values[values > -1e8]

    def gaps(values: torch.Tensor) -> None:
        values = values.sort(descending=True).values
        found.extend((values[:-1] - values[1:]).tolist())

    top, running, finished, heuristic = (GenerationMixin._get_top_k_continuations, GenerationMixin._get_running_beams_for_next_iteration,
                                         GenerationMixin._update_finished_beams, GenerationMixin._check_early_stop_heuristic)

    def top_(self, accumulated_log_probs, **kwargs):
        count = kwargs["beams_to_keep"]
        for row in accumulated_log_probs:
            gaps(real(row.sort(descending=True).values[count - 1:count + 1]))
        return top(self, accumulated_log_probs=accumulated_log_probs, **kwargs)

    def running_(self, topk_log_probs, next_token_hits_stopping_criteria, num_beams, **kwargs):
        for row, stops in zip(topk_log_probs, next_token_hits_stopping_criteria):
            open_ = real(row[~stops])
            gaps(open_[num_beams - 1:num_beams + 1])
            gaps(open_[:2])  # the best open beam decides when to stop
            if stops[num_beams - 1] or stops[num_beams:num_beams + 1].any():
                gaps(real(row[num_beams - 1:num_beams + 1]))
        return running(self, topk_log_probs=topk_log_probs, next_token_hits_stopping_criteria=next_token_hits_stopping_criteria, num_beams=num_beams, **kwargs)

    def finished_(self, **kwargs):
        out = finished(self, **kwargs)
        ends = kwargs["next_token_hits_stopping_criteria"] & kwargs["top_num_beam_mask"]
        length = kwargs["cur_len"] + 1 - kwargs["decoder_prompt_len"]
        for row, old, stops, more in zip(kwargs["topk_log_probs"], kwargs["beam_scores"], ends, kwargs["is_early_stop_heuristic_unsatisfied"]):
            if more.any():
                gaps(torch.cat([real(old), row[stops] / length ** kwargs["length_penalty"]]))
        return out

    def heuristic_(**kwargs):
        never = kwargs["early_stopping"] == "never" and kwargs["length_penalty"] > 0
        length = (kwargs["max_length"] if never else kwargs["cur_len"]) - kwargs["decoder_prompt_len"]
        best = kwargs["running_beam_scores"][:, 0] / length ** kwargs["length_penalty"]
        for open_, done, flags in zip(best, kwargs["beam_scores"], kwargs["is_sent_finished"]):
            if flags.any() and open_ > -1e8 and done.min() > -1e8:
                found.append(abs(open_ - done.min()).item())
        return heuristic(**kwargs)

    GenerationMixin._get_top_k_continuations = top_
    GenerationMixin._get_running_beams_for_next_iteration = running_
    GenerationMixin._update_finished_beams = finished_
    GenerationMixin._check_early_stop_heuristic = staticmethod(heuristic_)
    try:
        yield found
    finally:
        GenerationMixin._get_top_k_continuations = top
        GenerationMixin._get_running_beams_for_next_iteration = running
        GenerationMixin._update_finished_beams = finished
        GenerationMixin._check_early_stop_heuristic = staticmethod(heuristic)


def ends_of(model, options: dict | None = None) -> list[int]:
    """The end tokens of the options, or else the model's own."""
    eos = (options or {}).get("eosTokenId", model.generation_config.eos_token_id)
    return eos if isinstance(eos, list) else [] if eos is None else [eos]


@torch.no_grad()
def generate(model, rows: list[list[int]], options: dict, masks: list[list[int]] | None = None, prefix: list[int] | None = None):
    """What `generate` gives for equally long rows: for each, its sequences [{tokenIds, score?, finishReason}], and the smallest margin.

    `tokenIds` are the new tokens with the final end token. `score` stands where beams were used. `prefix`: `decoder_input_ids`.
    """
    ids = torch.tensor(rows)
    mask = torch.ones_like(ids) if masks is None else torch.tensor(masks)
    extra = {} if prefix is None else {"decoder_input_ids": torch.tensor([prefix] * len(rows))}
    with margins() as found:
        out = model.generate(ids, attention_mask=mask, **extra, **snake(options), output_scores=True, output_logits=True, return_dict_in_generate=True)
    beams = getattr(out, "sequences_scores", None)
    if beams is None:
        found = [((t := scores.topk(2).values)[:, 0] - t[:, 1]).min().item() for scores in out.scores]
        start = out.sequences.shape[1] - len(out.scores)
    elif model.config.is_encoder_decoder:
        given = [] if prefix is None else prefix
        starts = bool(given) and given[0] == model.generation_config.decoder_start_token_id
        start = len(given) + (0 if starts else 1)
    else:
        start = ids.shape[1]
    ends, results = ends_of(model, options), []
    count = len(out.sequences) // len(rows)
    for r in range(len(rows)):
        sequences = []
        for i in range(r * count, (r + 1) * count):
            tokens = out.sequences[i, start:].tolist()
            stop = next((t for t, token in enumerate(tokens) if token in ends), None)
            kept = tokens if stop is None else tokens[:stop + 1]
            sequences.append({"tokenIds": kept, **({} if beams is None else {"score": beams[i].item()}), "finishReason": "length" if stop is None else "stop"})
        results.append(sequences)
    return results, min(found, default=1.0)
